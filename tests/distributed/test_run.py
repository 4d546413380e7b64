"""Whole runs of the training loop, by what they leave in their folder: every layout writes one line a step and one set
of TensorBoard points, with the numbers of one process.

Steps are optimizer steps whatever the accumulation, tokens are counted once whatever the degrees, the loss is there
whichever rank computes it, and the parameters that decay are the same ones everywhere.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.distributed import tiny
from tests.distributed.ranks import run_ranks
from tests.distributed.test_parity import TOLERANCE, layout
from titan.runtime import StopRequest

STEPS = 4
LAYOUTS = [
    "training.local_batch_size=2",
    "dp_shard=2,tp=2",
    "dp_replicate=2,training.local_batch_size=2",
    "cp=2",
    "pp=2",
    "pp=2,schedule=ZBVZeroBubble",
    "pp=2,schedule=DualPipeV,dp_shard=2",
    "pp=4,schedule=GPipe",
]


def run(sections: dict[str, dict[str, Any]], folder: str) -> int:
    """What a rank does: the loop from its first step to its last."""
    training = {**sections.get("training", {}), "steps": STEPS}
    metrics = {"log_freq": 1, "enable_tensorboard": True}
    trainer = tiny.make_trainer(tiny.config({**sections, "training": training, "metrics": metrics}, folder))
    code: int = trainer.train(StopRequest())
    return code


def lines(text: str, folder: Path) -> list[dict[str, Any]]:
    size, sections = layout(text)
    assert run_ranks(run, size, sections, str(folder)) == [0] * size
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@cache
def one_process() -> list[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        return lines("", Path(folder))


@pytest.mark.parametrize("text", LAYOUTS)
def test_a_run_writes_the_lines_of_one_process(text: str, tmp_path: Path) -> None:
    found, wanted = lines(text, tmp_path), one_process()
    assert [line["step"] for line in found] == list(range(1, STEPS + 1))
    for step, (line, want) in enumerate(zip(found, wanted, strict=True), 1):
        assert line.keys() == want.keys()
        assert line["tokens"] == step * tiny.GLOBAL_ROWS * tiny.SEQ
        assert (line["lr"], line["valid_tokens"]) == (want["lr"], want["valid_tokens"])
        assert line["loss"] == pytest.approx(want["loss"], rel=TOLERANCE)
        assert line["grad_norm"] == pytest.approx(want["grad_norm"], rel=TOLERANCE)
        assert "mfu" not in line or line["mfu"] is None, "nothing is known of this device's peak"
    (events,) = (tmp_path / "tb").iterdir()
    points = EventAccumulator(str(events)).Reload()
    for name in ("loss", "grad_norm", "lr", "tokens"):
        values = [(event.step, event.tensor_proto.double_val[0]) for event in points.Tensors(name)]
        assert values == [(line["step"], line[name]) for line in found]


def decayed(sections: dict[str, dict[str, Any]]) -> list[str]:
    """Names of the parameters of this rank that a step with no gradient and a huge decay shrinks."""
    optimizer = {"lr": 1e-3, "weight_decay": 100.0}
    trainer = tiny.make_trainer(tiny.config({**sections, "optimizer": optimizer, "lr_scheduler": {"warmup_steps": 0}}))
    before = tiny.local_pieces(trainer, grads=False)
    for named in trainer.model.parameters:
        named.parameter.grad = torch.zeros_like(named.parameter)
    trainer.update(torch.zeros(()))
    after = tiny.local_pieces(trainer, grads=False)
    trainer.loader.close()
    trainer.checkpoints.close()
    return [old[0] for old, new in zip(before, after, strict=True) if not (old[3] == new[3]).all()]


@pytest.mark.parametrize("text", ["", "dp_shard=2,tp=2", "pp=2,schedule=ZBVZeroBubble"])
def test_the_matrices_decay_and_the_norms_do_not_at_any_layout(text: str) -> None:
    size, sections = layout(text)
    found = {name for names in run_ranks(decayed, size, sections) for name in names}
    blocks = [f"layers.{layer}" for layer in range(tiny.SHAPE["n_layers"])]
    matrices = ["attention.wq", "attention.wk", "attention.wv", "attention.wo"]
    matrices += ["feed_forward.w1", "feed_forward.w2", "feed_forward.w3"]
    inner = {f"{block}.{matrix}.weight" for block in blocks for matrix in matrices}
    assert found == inner | {"tok_embeddings.weight", "output.weight"}
