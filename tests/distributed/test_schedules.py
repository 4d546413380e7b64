"""Schedules from files, explicit splits, and bfloat16: what stands beside the names in the parity table.

An exported schedule replayed from its file gives the same bits. A bfloat16 run is compared with a plain bfloat16
loop (no trainer, no parallelism), and is judged as `titan parity` judges: by four times what that loop differs from
itself when it takes rows one at a time.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.distributed import tiny
from tests.distributed.ranks import run_ranks
from tests.distributed.test_parity import TOLERANCE, check, differences, layout, measured
from titan.config import resolve
from titan.parallelisms.pipeline import export_schedule
from titan.parallelisms.stages import csv_stage_ranks, splits_backward
from titan.parity import verdict
from titan.parity.measure import judge, plain_model
from titan.parity.record import Record
from titan.parity.verdict import OracleRun


def export(sections: dict[str, dict[str, Any]], path: Path) -> None:
    """Writes the schedule of this layout, from rank 0."""
    trainer = tiny.make_trainer(tiny.config(sections))
    trainer.loader.close()
    trainer.checkpoints.close()
    if dist.get_rank() == 0:
        export_schedule(trainer.model.schedule, path)


@pytest.mark.parametrize(
    ("schedule", "ranks"),
    [("Interleaved1F1B", [0, 1, 0, 1]), ("ZBVZeroBubble", [0, 1, 1, 0]), ("InterleavedZeroBubble", [0, 1, 0, 1])],
)
def test_an_exported_schedule_replays_to_the_same_bits(schedule: str, ranks: list[int], tmp_path: Path) -> None:
    size, sections = layout(f"pp=2,schedule={schedule}")
    path = tmp_path / "schedule.csv"
    run_ranks(export, size, sections, path)
    assert csv_stage_ranks(path) == ranks
    assert splits_backward("GPipe", path) == splits_backward(schedule)
    # The name is another one on purpose: the file decides.
    replay = {"parallelism": {**sections["parallelism"], "pipeline_parallel_schedule_csv": str(path)}}
    replay["parallelism"]["pipeline_parallel_schedule"] = "1F1B"
    wanted, found = (run_ranks(tiny.run_layout, size, one) for one in (sections, replay))
    assert max(differences(replay, found).values()) < TOLERANCE
    for want, got in zip(wanted, found, strict=True):
        for before, after in zip(want["records"], got["records"], strict=True):
            assert (before["loss"], before["grad_norm"]) == (after["loss"], after["grad_norm"])
            assert [piece[0] for piece in before["grads"]] == [piece[0] for piece in after["grads"]]
            assert all(np.array_equal(a[3], b[3]) for a, b in zip(before["grads"], after["grads"], strict=True))


def refused_export(sections: dict[str, dict[str, Any]], path: Path) -> str:
    try:
        export(sections, path)
    except TypeError as error:
        return str(error)
    return ""


def test_a_schedule_without_an_action_list_is_not_exported(tmp_path: Path) -> None:
    first, _second = run_ranks(refused_export, 2, layout("pp=2,schedule=1F1B")[1], tmp_path / "no.csv")
    assert first == "Schedule1F1B has no action list to export; the multi-stage schedules have"
    assert not (tmp_path / "no.csv").exists()


def modules_of(sections: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Names of the modules with parameters in each part of this rank, blocks and ends."""
    trainer = tiny.make_trainer(tiny.config(sections))
    trainer.loader.close()
    trainer.checkpoints.close()
    names = [name for part in trainer.model.parts for name, _ in part.named_children() if name != "layers"]
    return [
        sorted({*(f"layers.{block}" for block in part.layers), *(n for n in names if getattr(part, n) is not None)})
        for part in trainer.model.parts
    ]


EXPLICIT = {
    "uneven": ("1F1B", [["tok_embeddings"], [*(f"layers.{i}" for i in range(4)), "norm", "output"]]),
    "interleaved": (
        "Interleaved1F1B",
        [["tok_embeddings", "layers.0", "layers.1"], ["layers.2"], ["layers.3"], ["norm", "output"]],
    ),
    "v": (
        "ZBVZeroBubble",
        [["tok_embeddings"], ["layers.0"], ["layers.1", "layers.2"], ["layers.3", "norm", "output"]],
    ),
}


@pytest.mark.parametrize("name", EXPLICIT)
def test_an_explicit_split_is_taken_as_it_is_and_trains_like_the_oracle(name: str) -> None:
    schedule, parts = EXPLICIT[name]
    size, sections = layout(f"pp=2,schedule={schedule}")
    sections["parallelism"]["module_fqns_per_model_part"] = parts
    held = run_ranks(modules_of, size, sections)
    ranks = {"1F1B": [0, 1], "Interleaved1F1B": [0, 1, 0, 1], "ZBVZeroBubble": [0, 1, 1, 0]}[schedule]
    assert held == [[sorted(part) for part, rank in zip(parts, ranks, strict=True) if rank == r] for r in range(size)]
    found = differences(sections, run_ranks(tiny.run_layout, size, sections))
    assert found["first"] == 0.0, "the split moves no initial weight"
    assert max(found.values()) < TOLERANCE, found


@pytest.mark.parametrize(
    "text",
    [
        "pp=2,schedule=Interleaved1F1B,parallelism.pipeline_parallel_layers_per_stage=1",  # six stages
        "pp=2,schedule=1F1B,parallelism.pipeline_parallel_layers_per_stage=3",
        "pp=2,schedule=1F1B,parallelism.pipeline_parallel_first_stage_less_layers=3",
    ],
)
def test_the_size_of_stages_changes_no_number(text: str) -> None:
    found = check(text)
    assert found["first"] == 0.0
    assert max(found.values()) < TOLERANCE, found


BF16 = {"mixed_precision_param": "bfloat16"}


_folder = tempfile.TemporaryDirectory()


@cache
def bfloat16_oracle() -> tuple[Record, OracleRun]:
    """The plain loop over the plain module: float32 masters, bfloat16 forward and backward."""
    settings = tiny.config({"training": BF16})
    resolved = resolve(settings, 1, "cpu")
    weights, forward = plain_model(resolved, 7, torch.device("cpu"))
    record = Record(Path(_folder.name))
    return record, judge(settings, forward, weights, tiny.rows_of(tiny.STEPS), record)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "training.local_batch_size=2",
        "dp_shard=2",
        "dp_replicate=2",
        "tp=2",
        "pp=2,schedule=1F1B",
        "pp=2,schedule=ZBVZeroBubble",
        "pp=2,dp_shard=2,schedule=ZBVZeroBubble",
        "pp=2,dp_shard=2,schedule=ZBVZeroBubble,training.local_batch_size=2",
    ],
    ids=lambda text: text or "one process",
)
def test_bfloat16_stays_within_four_times_the_reordering_noise(text: str) -> None:
    size, sections = layout(text)
    sections["training"] = {**sections.get("training", {}), **BF16}
    results = run_ranks(tiny.run_layout, size, sections)
    record, run = bfloat16_oracle()
    noise = verdict.noise_floor(run)
    found = verdict.differences(run, [measured(record, result) for result in results])
    assert found.initial
    assert 1e-4 < max(noise.gradients.values()) < 0.05, "the floor itself is that of bfloat16"
    findings = verdict.judge(found, noise, run.epsilon)
    assert all(finding.within for finding in findings), findings


def dtypes(sections: dict[str, dict[str, Any]]) -> set[torch.dtype]:
    """Of the masters and of the optimizer's state after a step."""
    trainer = tiny.make_trainer(tiny.config(sections))
    found = set()
    tiny.train_steps(trainer, 1)
    for named in trainer.model.parameters:
        found.add(named.parameter.dtype)
        found |= {state.dtype for state in trainer.optimizer.state[named.parameter].values()}
    trainer.loader.close()
    trainer.checkpoints.close()
    return found


@pytest.mark.parametrize(
    "text", ["", "dp_shard=2", "pp=2,schedule=ZBVZeroBubble"], ids=lambda text: text or "one process"
)
def test_masters_and_moments_stay_float32(text: str) -> None:
    size, sections = layout(text)
    assert run_ranks(dtypes, size, {**sections, "training": BF16}) == [{torch.float32}] * size


@pytest.mark.parametrize("text", ["", "dp_shard=2"], ids=lambda text: text or "one process")
def test_masters_and_moments_have_the_type_that_training_dtype_says(text: str) -> None:
    size, sections = layout(text)
    found = run_ranks(dtypes, size, {**sections, "training": {**BF16, "dtype": "bfloat16"}})
    assert found == [{torch.bfloat16, torch.float32}] * size, "float32 is the optimizer's count of steps"
