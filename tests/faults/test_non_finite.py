"""A loss, gradient or weight that is not finite never reaches the weights, on all ranks alike, by each policy (C79).

What follows a skip or a rewind is the run that never had the rows: its losses and weights, at every layout.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from tests.distributed import tiny
from tests.distributed.ranks import run_ranks
from tests.distributed.test_parity import TOLERANCE, layout, relative
from tests.faults import spoilt
from titan.faults.non_finite import NonFinite, NonFinitePolicy, is_finite
from titan.runtime import StopRequest

STEPS = 5
# The bad row is in the fourth step. A skip goes on with the fifth; a rewind first goes back to the save of step 2.
AFTER_SKIP = [0, 1, 2, 4, 5, 6]
AFTER_REWIND = [0, 1, 4, 5, 6, 7]


@cache
def clean(order: tuple[int, ...], steps: int) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """Metrics and last weights of the run on one process that never had the rows."""
    with TemporaryDirectory() as folder:
        (found,) = run_ranks(spoilt.run, 1, {}, folder, steps=steps, kind=None, order=list(order))
        assert found["error"] is None
        return lines(Path(folder)), tiny.whole([found["last"]])


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def agrees(results: list[dict[str, Any]], folder: Path, order: list[int], steps: int) -> None:
    wanted, weights = clean(tuple(order), steps)
    found = lines(folder)
    assert [line["step"] for line in found] == list(range(1, steps + 1)), "one line a step, though some came twice"
    for line, want in zip(found, wanted, strict=True):
        assert (line["lr"], line["tokens"]) == (want["lr"], want["tokens"])
        assert line["loss"] == pytest.approx(want["loss"], rel=TOLERANCE)
    last = tiny.whole([result["last"] for result in results])
    assert max(relative(last[name], weights[name]) for name in weights) < TOLERANCE


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("", "logits", "Loss not finite in row 27 (rank 0, pipeline rank 0)."),
        ("dp_shard=2,training.local_batch_size=2", "logits", "Loss not finite in row 27 (rank 0, pipeline rank 0)."),
        ("cp=2", "logits", "Loss not finite in row 27 (ranks 0, 1, pipeline rank 0)."),
        ("pp=2,schedule=ZBVZeroBubble,dp_shard=2", "logits", "Loss not finite in row 27 (rank 0, pipeline rank 0)."),
        ("dp_replicate=2", "loss", "Loss not finite in row 27 (rank 0, pipeline rank 0). Lower"),
        ("pp=2", "gradient", "output.weight (rank 1, pipeline rank 1)"),
    ],
)
def test_the_run_ends_before_the_update_and_names_the_row(text: str, kind: str, said: str, tmp_path: Path) -> None:
    size, sections = layout(text)
    results = run_ranks(spoilt.run, size, sections, str(tmp_path), steps=STEPS, kind=kind)
    assert {result["error"] for result in results} == {results[0]["error"]}, "the same on all ranks"
    name, message = results[0]["error"]
    assert name == "NonFinite"
    assert NonFinite.exit_code == 3
    assert message.startswith("step 4: the loss is ")
    assert "over rows 24 to 31; the optimizer has not taken this step." in message
    assert said in message, message
    for result in results:
        assert spoilt.finite(result["last"])
        assert (result["progress"]["step"], result["updates"]) == (3, {3.0})
    assert sorted(path.name for path in (tmp_path / "checkpoint").glob("step-*")) == ["step-2"]


@pytest.mark.parametrize("text", ["", "dp_replicate=2,tp=2", "pp=2,training.local_batch_size=4"])
def test_after_a_skip_the_run_is_the_one_without_those_rows(text: str, tmp_path: Path) -> None:
    size, sections = layout(text)
    sections.setdefault("training", {})["non_finite"] = "skip"
    results = run_ranks(spoilt.run, size, sections, str(tmp_path), steps=STEPS)
    for result in results:
        assert (result["error"], result["skipped"]) == (None, 1)
        assert result["updates"] == {float(STEPS)}, "the optimizer has seen the steps that were taken and no other"
        assert result["progress"] == {"step": 5, "rows": 48, "tokens": 5 * 8 * tiny.SEQ}
    agrees(results, tmp_path, AFTER_SKIP, STEPS)


def test_after_a_rewind_the_run_goes_on_past_the_rows_also_after_a_resume_elsewhere(tmp_path: Path) -> None:
    size, sections = layout("dp_shard=2,reshard=never")
    sections["training"] = {"non_finite": "rewind"}
    results = run_ranks(spoilt.run, size, sections, str(tmp_path), steps=4)
    for result in results:
        assert (result["error"], result["skipped"], result["updates"]) == (None, 1, {4.0})
        assert result["progress"] == {"step": 4, "rows": 48, "tokens": 4 * 8 * tiny.SEQ}
    size, sections = layout("pp=2")
    results = run_ranks(spoilt.run, size, sections, str(tmp_path), steps=6)
    assert all(result["progress"]["rows"] == 64 and result["skipped"] == 1 for result in results)
    found = [line for line in lines(tmp_path) if line["step"] > 2]
    wanted, weights = clean(tuple(AFTER_REWIND), 6)
    # Both parts were configured with their own number of steps, and so with their own learning rates after warm-up.
    assert [line["step"] for line in found] == [3, 4, 5, 6]
    assert found[0]["loss"] == pytest.approx(wanted[2]["loss"], rel=TOLERANCE)
    last = tiny.whole([result["last"] for result in results])
    assert set(last) == set(weights)


def test_a_skip_is_refused_when_the_budget_is_spent(tmp_path: Path) -> None:
    policy = NonFinitePolicy("skip", budget=2)
    assert [policy.decide("bad."), policy.decide("bad.")] == ["skip", "skip"]
    with pytest.raises(NonFinite, match=r"bad\. training.non_finite_budget = 2 is spent: 2 steps"):
        policy.decide("bad.")


def test_a_rewind_without_a_checkpoint_ends_the_run(tmp_path: Path) -> None:
    sections = {"training": {"non_finite": "rewind"}, "checkpoint": {"enable": True, "interval": 100}}
    (result,) = run_ranks(spoilt.run, 1, sections, str(tmp_path), steps=STEPS)
    assert result["error"][0] == "NonFinite"
    assert result["error"][1].endswith("There is no checkpoint to rewind to.")


def _spoil_weights(folder: str, action: str) -> dict[str, Any]:
    """A rate that makes the weights infinite in the update of step 2, which a save follows."""
    sections = {
        "parallelism": {"data_parallel_shard_degree": 2},
        "optimizer": {"lr": 1e-3, "weight_decay": 0.0},
        "training": {"non_finite": action, "steps": 4},
        "checkpoint": {"enable": True, "interval": 1},
    }
    trainer = tiny.make_trainer(tiny.config(sections, folder), spoilt.Rows(bad=False))
    apply, done = trainer.schedule.apply, []

    def once(step: int) -> float:
        rate = apply(step)
        if step == 2 and not done:
            done.append(step)
            for group in trainer.optimizer.param_groups:
                group["lr"] = 1e39
        return rate

    trainer.schedule.apply = once
    try:
        trainer.train(StopRequest())
    except NonFinite as error:
        return {"error": str(error), "step": trainer.progress.step}
    return {
        "error": None,
        "progress": vars(trainer.progress),
        "finite": is_finite(trainer.model.parameters, trainer.optimizer, trainer.world.device),
    }


def test_weights_that_an_update_spoilt_are_never_saved(tmp_path: Path) -> None:
    found = run_ranks(_spoil_weights, 2, str(tmp_path), "fail")
    for result in found:
        assert result["error"].startswith("step 2: after the update the weights are not finite: tok_embeddings.weight")
    saved = sorted(path.name for path in (tmp_path / "checkpoint").glob("step-*"))
    assert saved == ["step-1"]


def test_a_rewind_mends_weights_that_an_update_spoilt(tmp_path: Path) -> None:
    for result in run_ranks(_spoil_weights, 2, str(tmp_path), "rewind"):
        assert result["error"] is None
        assert result["finite"]
        assert result["progress"]["step"] == 4
        assert result["progress"]["rows"] == 5 * tiny.GLOBAL_ROWS
