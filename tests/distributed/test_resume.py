"""Saved at one layout and resumed at another: two steps and two more are four straight steps of one process.

Loss and grad norm of every step to 1e-5, and the last weights; the first row after the resume follows the last one
before it, step and token counters go on. The pairs walk through every kind of degree, V-shaped schedules, several
stages a rank and a tied head, each as writer and as reader.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed import tiny
from tests.distributed.ranks import run_ranks
from tests.distributed.test_parity import TOLERANCE, layout, relative

STEPS, FIRST = 4, 2
TIED = "args.tie_embeddings=true"


class RecordedRows(tiny.UnevenRows):
    """Remembers which rows were asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def fetch(self, start: int, count: int) -> Any:
        self.asked.append((start, count))
        return super().fetch(start, count)


def run_part(sections: dict[str, dict[str, Any]], folder: Path, steps: int) -> dict[str, Any]:
    """What a rank does: start or go on in `folder`, take steps, save. Rows as (start, count) of every fetch."""
    options = {
        **sections,
        "training": {**sections.get("training", {}), "steps": STEPS},
        "checkpoint": {"enable": True, "interval": FIRST},
    }
    rows = RecordedRows()
    trainer = tiny.make_trainer(tiny.config(options, str(folder)), rows)
    first_step = trainer.progress.step
    records = tiny.train_steps(trainer, steps)
    trainer.save()
    trainer.loader.close()
    trainer.checkpoints.close()
    return {
        "first_step": first_step,
        "records": [{key: record[key] for key in ("loss", "grad_norm", "lr")} for record in records],
        "last": tiny.local_pieces(trainer, grads=False),
        "progress": (trainer.progress.step, trainer.progress.rows, trainer.progress.tokens),
        "first_row": min(start for start, _count in rows.asked),
    }


@cache
def straight(model: tuple[tuple[str, Any], ...]) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Records and last weights of four steps of the one-process trainer, without a checkpoint."""
    (result,) = run_ranks(straight_part, 1, dict(model))
    return result["records"], tiny.whole([result["last"]])


def straight_part(args: dict[str, Any]) -> dict[str, Any]:
    trainer = tiny.make_trainer(tiny.config({"model": {"args": args}, "training": {"steps": STEPS}}))
    records = tiny.train_steps(trainer, STEPS)
    trainer.loader.close()
    trainer.checkpoints.close()
    return {"records": records, "last": tiny.local_pieces(trainer, grads=False)}


PAIRS = [
    ("", "tp=2"),
    ("dp_shard=2", "pp=2,schedule=ZBVZeroBubble"),
    ("tp=2,pp=2", "dp_shard=4"),
    (f"pp=2,schedule=Interleaved1F1B,{TIED}", TIED),
    ("cp=2", "dp_replicate=2"),
    ("", "dp_replicate=2,dp_shard=2"),
    ("pp=2,schedule=ZBVZeroBubble", ""),
    (f"dp_shard=2,{TIED}", f"pp=2,schedule=DualPipeV,{TIED}"),
    ("tp=4", "cp=2,rotate=ulysses,training.local_batch_size=2"),
]


@pytest.mark.parametrize(("writer", "reader"), PAIRS)
def test_a_resume_at_another_layout_goes_on_exactly(writer: str, reader: str, tmp_path: Path) -> None:
    records: list[dict[str, float]] = []
    last: dict[str, torch.Tensor] = {}
    for number, text in enumerate((writer, reader)):
        size, sections = layout(text)
        results = run_ranks(run_part, size, sections, tmp_path, FIRST)
        done = (number + 1) * FIRST
        progress = (done, done * tiny.GLOBAL_ROWS, done * tiny.GLOBAL_ROWS * tiny.SEQ)
        assert all(result["first_step"] == number * FIRST for result in results), "the reader found the checkpoint"
        assert all(result["progress"] == progress for result in results)
        assert min(result["first_row"] for result in results) == number * FIRST * tiny.GLOBAL_ROWS
        assert all(result["records"] == results[0]["records"] for result in results), "ranks agree on what they log"
        records += results[0]["records"]
        last = tiny.whole([result["last"] for result in results])
    wanted, weights = straight(tuple(sorted(sections.get("model", {}).get("args", {}).items())))
    for step, (found, want) in enumerate(zip(records, wanted, strict=True)):
        assert found["lr"] == want["lr"]
        for key in ("loss", "grad_norm"):
            assert abs(found[key] / want[key] - 1) < TOLERANCE, f"step {step + 1}: {key} {found[key]} for {want[key]}"
    worst = max(relative(last[name], weights[name]) for name in weights)
    assert set(last) == set(weights)
    assert worst < TOLERANCE
