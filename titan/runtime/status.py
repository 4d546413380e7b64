"""status.json in the run folder: how the last attempt ended, for the launcher, a queue or a person.

The launcher of a node reads it to tell a run that stopped by agreement (exit 75, start me again) from one that is
done (exit 0): torch's elastic agent takes no exit code but 0 for success. Written under a temporary name and
renamed, so that a reader never sees half of it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

NAME = "status.json"
STOPPED = "stopped"
DONE = "done"


def write_status(folder: str | os.PathLike[str], status: str, **details: Any) -> None:
    """Writes `{"status": status, **details}`. To be called by the first rank of each node: nodes may not share folders.

    Args:
        folder: the run folder; made if missing.
        status: "stopped" or "done".
        details: step, reason and the like; JSON values.
    """
    target = Path(folder) / NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{NAME}.{os.getpid()}")
    temporary.write_text(json.dumps({"status": status, **details}, indent=1) + "\n", encoding="utf-8")
    temporary.replace(target)


def read_status(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What `write_status` wrote, None where there is nothing. Raises ValueError for a file that is not ours."""
    try:
        text = (Path(folder) / NAME).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    status = json.loads(text)
    if not isinstance(status, dict):
        raise ValueError(f"{Path(folder) / NAME}: not a table.")
    return status


def clear_status(folder: str | os.PathLike[str]) -> None:
    """Removes what an earlier attempt left."""
    (Path(folder) / NAME).unlink(missing_ok=True)
