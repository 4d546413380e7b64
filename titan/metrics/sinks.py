"""Where numbers go: metrics.jsonl, TensorBoard, W&B, at full precision, from one process, one value a step also after
a resume. `save_for_all_ranks` adds the files of the other ranks beside those of rank 0, for what differs between them:
memory and clocks.

A run that goes on from step k writes the steps after k anew, so whatever an earlier attempt wrote there is dropped
from both. TensorBoard's own scalar is a float32; these are written as its tensor-valued scalars of one double (what
`tf.summary.scalar` writes): the scalars page shows them, and `EventAccumulator.Tensors(name)` reads them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titan.config.schema import Metrics as Section
from titan.metrics.event_files import keep_events_until

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

    from titan.metrics.wandb_sink import WandbRun

NAME = "metrics.jsonl"


class Metrics:
    """The open sinks of one run; on ranks that write nothing, all calls do nothing.

    Args:
        section: which sinks.
        folder: the run folder, which exists.
        rank: 0 writes; others do with `save_for_all_ranks`, to metrics.rank-N.jsonl and rank-N/ in the TensorBoard
            folder.
        resumed_step: the last step that counts; 0 for a fresh run.
        record: the configuration, for W&B.

    Raises:
        OSError: a file cannot be written.
        WandbUnavailable: W&B is asked for and cannot be reached.
    """

    def __init__(
        self, section: Section, folder: Path, *, rank: int, resumed_step: int, record: Mapping[str, Any] | None = None
    ) -> None:
        self._writer: SummaryWriter | None = None
        self._path: Path | None = None
        self._wandb: WandbRun | None = None
        if rank and not section.save_for_all_ranks:
            return
        if section.enable_jsonl:
            self._path = folder / (NAME if rank == 0 else f"metrics.rank-{rank}.jsonl")
            keep_lines_until(self._path, resumed_step)
        if section.enable_tensorboard:
            from torch.utils.tensorboard.writer import SummaryWriter

            events = folder / section.save_tb_folder / ("" if rank == 0 else f"rank-{rank}")
            keep_events_until(events, resumed_step)
            # For a TensorBoard that is running and has read the dropped steps already.
            self._writer = SummaryWriter(str(events), purge_step=resumed_step + 1)
        if section.enable_wandb:
            from titan.metrics.wandb_sink import WandbRun

            self._wandb = WandbRun(folder, rank=rank, resumed_step=resumed_step, record=record or {})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one logged step, and has it on disk when it returns: a reader may follow.

        Args:
            step: from 1, higher than any logged before.
            values: numbers of the whole job, by name. One that is not finite is null in the JSON, which has no NaN.
        """
        if self._path is not None:
            line = {"step": step, **{name: value if math.isfinite(value) else None for name, value in values.items()}}
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step, new_style=True, double_precision=True)
            self._writer.flush()
        if self._wandb is not None:
            self._wandb.log(step, values)

    def close(self) -> None:
        """May be called more than once."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._wandb is not None:
            self._wandb.close()
            self._wandb = None


def keep_lines_until(path: Path, step: int) -> None:
    """Drops the lines of later steps, and a last line that was cut by a crash; the file is replaced in one rename."""
    if not path.exists():
        return
    content = path.read_text(encoding="utf-8")
    kept = "".join(line + "\n" for line in content.splitlines() if _step_of(line) <= step)
    if kept != content:
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(kept, encoding="utf-8")
        temporary.replace(path)


def _step_of(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # no line of ours, or half of one
        return math.inf
