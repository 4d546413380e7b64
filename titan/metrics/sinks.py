"""Where numbers go: metrics.jsonl and TensorBoard, at full precision, from one process, one value a step also after a resume.

A run that goes on from step k writes steps after k anew, so whatever an earlier attempt wrote there is dropped: lines of the file
are cut, TensorBoard is told to purge.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from titan.config.schema import Metrics as Section

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

NAME = "metrics.jsonl"


class Metrics:
    """The open sinks of one run; where `enabled` is False, all calls do nothing.

    Args:
        folder: the run folder.
        resumed_step: the last step that counts; 0 for a fresh run.
    """

    def __init__(self, section: Section, folder: Path, *, enabled: bool, resumed_step: int) -> None:
        self._writer: SummaryWriter | None = None
        self._path: Path | None = None
        if not enabled:
            return
        if section.enable_jsonl:
            self._path = folder / NAME
            keep_until(self._path, resumed_step)
        if section.enable_tensorboard:
            from torch.utils.tensorboard.writer import SummaryWriter

            self._writer = SummaryWriter(str(folder / section.save_tb_folder), purge_step=resumed_step + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One logged step; `values` are numbers that all ranks agreed on."""
        if self._path is not None:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **values}) + "\n")
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step, new_style=True, double_precision=True)
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def keep_until(path: Path, step: int) -> None:
    """Drops the lines of later steps, and a last line that was cut by a crash; the file is replaced in one rename."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            continue
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text("".join(kept), encoding="utf-8")
    temporary.replace(path)
