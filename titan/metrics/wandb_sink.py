"""Weights & Biases, online or offline: a run a rank that writes, in the run folder's `wandb/`.

Project, entity and name come from the variables that W&B reads (WANDB_PROJECT, WANDB_ENTITY or torchtitan's WANDB_TEAM,
WANDB_NAME or WANDB_RUN_NAME, WANDB_MODE=offline for a machine without network, then `wandb sync`). The id of the run is
kept in the folder, so that a resume goes on with the same curves. Steps of a W&B run only grow: those that a resume
takes again keep their first value there, metrics.jsonl and TensorBoard have the new one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ID = "run-id{}.txt"


class WandbUnavailable(RuntimeError):
    """W&B cannot be reached or is not logged in; the message says what to set."""

    exit_code = 2  # refused: the same start would fail again


class WandbRun:
    """One open run; made on the ranks that write.

    Args:
        folder: the run folder, which exists.
        rank: shown in the name where it is not 0; the runs of all ranks are one group.
        resumed_step: 0 begins a new run.
        record: the configuration, to be searched and compared by.

    Raises:
        WandbUnavailable: no network or no login, in online mode.
    """

    def __init__(self, folder: Path, *, rank: int, resumed_step: int, record: Mapping[str, Any]) -> None:
        import wandb

        target = folder / "wandb"
        target.mkdir(exist_ok=True)
        suffix = f".rank-{rank}" if rank else ""
        kept = target / _ID.format(suffix)
        name = os.environ.get("WANDB_NAME") or os.environ.get("WANDB_RUN_NAME") or folder.resolve().name
        mode: Any = os.environ.get("WANDB_MODE") or None
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or "titan",
                entity=os.environ.get("WANDB_ENTITY") or os.environ.get("WANDB_TEAM"),
                name=f"{name}{suffix}",
                group=name if rank else None,
                id=kept.read_text().strip() if resumed_step and kept.exists() else None,
                resume="allow",
                mode=mode,
                dir=str(folder),
                config=dict(record),
                settings=wandb.Settings(console="off", silent=True),  # the log is ours
            )
        except wandb.Error as error:
            raise WandbUnavailable(
                f"metrics.enable_wandb = true: {error}. Set WANDB_API_KEY, or WANDB_MODE=offline to write to "
                f"{target} and `wandb sync` later."
            ) from error
        kept.write_text(f"{self._run.id}\n")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
