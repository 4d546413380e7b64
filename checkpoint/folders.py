"""Which folders are checkpoints, and which of them are complete.

    <folder>/step-120/          a checkpoint: .metadata and __R_0.distcp (DCP), state.json, manifest.json
    <folder>/.tmp-step-130/     being written, or left by a crash
    <folder>/.old-step-120/     set aside while step-120 is written anew
    <folder>/model-only/step-120/   weights alone, in the same format

Complete means that the manifest, which is written last, is there, is about this step, and every file that it lists
has its size. Names that are not exactly ours (step-abc, step-2-backup, notes.txt) are other people's: never read,
counted, or removed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from titan.checkpoint.errors import CheckpointError

FORMAT = 1
STATE = "state.json"
MANIFEST = "manifest.json"
METADATA = ".metadata"
EXPORTS = "model-only"
_STEP = re.compile(r"step-(0|[1-9][0-9]*)")


def step_name(step: int) -> str:
    return f"step-{step}"


def is_plain_name(name: Any) -> bool:
    """Whether it names a file directly in a folder: no path, no way up."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}


def steps_in(folder: Path) -> list[int]:
    """Steps that have a folder of our name, complete or not, in ascending numeric order; none where the folder does
    not exist.

    Raises:
        CheckpointError: the path is not a folder.
    """
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder: checkpoints cannot be kept there; choose another checkpoint.folder"
        )
    matches = (_STEP.fullmatch(entry.name) for entry in folder.iterdir() if entry.is_dir())
    return sorted(int(match[1]) for match in matches if match)


def incomplete(folder: Path, step: int | None = None) -> str | None:
    """Why the folder is not a complete checkpoint (of this step, if given), or None if it is one."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"it has no {MANIFEST}, so its writing was cut off"
    except (ValueError, NotADirectoryError):
        return f"its {MANIFEST} is damaged"
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or not {STATE, METADATA} <= set(files):
        return f"its {MANIFEST} is damaged"
    if manifest.get("format") != FORMAT:
        return f"its format is {manifest.get('format')}, this version reads {FORMAT}"
    if step is not None and manifest.get("step") != step:
        return f"its {MANIFEST} is that of step {manifest.get('step')}"
    for name, entry in files.items():
        if not is_plain_name(name) or not isinstance(entry, dict):
            return f"its {MANIFEST} is damaged"
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry.get("bytes"):
            return f"{name} has {path.stat().st_size} bytes, the manifest says {entry.get('bytes')}"
    return None


def complete_steps(folder: Path) -> list[int]:
    """Complete checkpoints in ascending numeric order."""
    return [step for step in steps_in(folder) if incomplete(folder / step_name(step), step) is None]


def manifest_of(folder: Path, step: int) -> dict[str, Any]:
    """The manifest of what stands in the folder now. Later versions may add to each file's entry, a checksum for
    instance.
    """
    files = {path.name: {"bytes": path.stat().st_size} for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    return {"format": FORMAT, "step": step, "files": files}


def superseded(complete: list[int], *, keep: int, written: int) -> list[int]:
    """Steps to remove after `written` has become visible: all but the `keep` highest and itself; none where `keep`
    is 0.
    """
    if keep == 0:
        return []
    kept = {*sorted(complete)[-keep:], written}
    return [step for step in sorted(complete) if step not in kept]
