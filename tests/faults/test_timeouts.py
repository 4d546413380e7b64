"""The long timeout holds in every group until the first step of an attempt is done, the short one from there on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.distributed import tiny
from tests.distributed.ranks import run_ranks
from tests.distributed.test_parity import layout
from titan.runtime import StopRequest


def _seconds(trainer: Any) -> set[float]:
    groups = [torch.distributed.group.WORLD, *trainer.mesh.groups]
    return {group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups}


def _watch(sections: dict[str, dict[str, Any]], folder: str) -> list[set[float]]:
    """Timeouts while each step runs, and after the last."""
    found = []
    trainer = tiny.make_trainer(tiny.config(sections, folder))
    forward = trainer.forward_backward

    def look(*args: Any) -> Any:
        found.append(_seconds(trainer))
        return forward(*args)

    trainer.forward_backward = look
    trainer.train(StopRequest())
    return [*found, _seconds(trainer)]


def test_long_until_the_first_step_is_done_and_short_afterwards_also_after_a_resume(tmp_path: Path) -> None:
    size, sections = layout("cp=2,tp=2")
    sections |= {"comm": {"init_timeout_seconds": 50, "train_timeout_seconds": 40}}
    sections |= {"checkpoint": {"enable": True, "interval": 2}}
    for steps in (2, 4):
        sections["training"] = {"steps": steps}
        for found in run_ranks(_watch, size, sections, str(tmp_path)):
            assert found == [{50.0}, {40.0}, {40.0}]
