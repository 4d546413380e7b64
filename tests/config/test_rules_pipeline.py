"""Pipeline rules, each against what torch's own schedule classes accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from titan.config.layout import Batch, Degrees
from titan.config.rules_pipeline import pipeline
from titan.config.schema import Parallelism
from titan.models.registry import Stages

pytestmark = pytest.mark.quick
ORDER = Stages(first=("tok_embeddings",), blocks="layers", last=("norm", "output"))
SCHEDULES = ["1F1B", "GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]


def said(
    schedule: str = "1F1B",
    *,
    pp: int = 2,
    n_layers: int = 8,
    microbatches: int = 8,
    rows: int | None = None,
    **keys: Any,
) -> list[str]:
    section = Parallelism.model_validate(
        {"pipeline_parallel_degree": pp, "pipeline_parallel_schedule": schedule, **keys}
    )
    batch = Batch(rows or microbatches, rows or microbatches, 1, (rows or microbatches) // microbatches)
    return [str(problem) for problem in pipeline(section, Degrees(pp=pp), ORDER, n_layers, batch)]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pp", [2, 4])
def test_every_schedule_runs_with_enough_layers_and_microbatches(schedule: str, pp: int) -> None:
    assert said(schedule, pp=pp, microbatches=2 * pp) == []
    assert said(schedule, pp=1, microbatches=1) == []


# (keyword arguments of `said`, what the one message contains)
REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    # C50
    ({"schedule": "1F1B", "pp": 4, "microbatches": 3}, ["at least 4 microbatches on 4 ranks", "there are 3 (3 rows"]),
    ({"schedule": "1F1B", "microbatches": 1, "rows": 4}, ["there are 1 (4 rows at once", "microbatch_size = 4"]),
    ({"schedule": "DualPipeV", "microbatches": 3}, ["at least 4 microbatches on 2 ranks"]),
    ({"schedule": "Interleaved1F1B", "microbatches": 5}, ["multiple of 2, 4 or 6"]),
    ({"schedule": "InterleavedZeroBubble", "pp": 4, "n_layers": 16, "microbatches": 9}, ["multiple of 4, 8 or 12"]),
    # C49: layers that do not fill the stages
    ({"schedule": "1F1B", "pp": 4, "n_layers": 1}, ["1 layers do not fill 4 pipeline stages"]),
    ({"schedule": "ZBVZeroBubble", "pp": 4, "n_layers": 4}, ["4 layers do not fill 8 pipeline stages"]),
    ({"n_layers": 4, "pipeline_parallel_first_stage_less_layers": 9}, ["do not fill 2", "first_stage_less_layers = 9"]),
    # C51: stages a rank
    ({"schedule": "ZBVZeroBubble", "pipeline_parallel_layers_per_stage": 5}, ["makes 2 stages", "4 (two a rank)"]),
    ({"schedule": "DualPipeV", "pipeline_parallel_layers_per_stage": 2}, ["makes 5 stages", "4 (two a rank)"]),
    ({"schedule": "1F1B", "pipeline_parallel_layers_per_stage": 3}, ["makes 4 stages", "2 (one a rank)"]),
    ({"schedule": "LoopedBFS", "pipeline_parallel_layers_per_stage": 4}, ["makes 3 stages", "a multiple of 2"]),
    # C47
    ({"schedule": "ZBVZeroBubble", "fsdp_reshard_after_forward": "always"}, ['= "always"', "use default or never"]),
    ({"schedule": "DualPipeV", "fsdp_reshard_after_forward": 2}, ["= 2", "use default or never"]),
    # explicit modules
    (
        {"n_layers": 1, "module_fqns_per_model_part": [["tok_embeddings"], ["norm", "output"]]},
        ["no stage holds layers.0"],
    ),
    (
        {"n_layers": 1, "module_fqns_per_model_part": [["tok_embeddings", "layers.0", "norm", "output"]]},
        ["1 stages; 1F1B on 2 ranks takes 2, one a rank"],
    ),
]


@pytest.mark.parametrize(("arguments", "parts"), REFUSED)
def test_a_pipeline_that_cannot_run_is_refused_with_its_numbers(arguments: dict[str, Any], parts: list[str]) -> None:
    (message,) = said(**arguments)
    assert all(part in message for part in parts), message


def test_uneven_layers_are_fine() -> None:
    assert said(n_layers=5) == []
    assert said("Interleaved1F1B", n_layers=7) == []
    assert said("Interleaved1F1B", n_layers=6, pipeline_parallel_layers_per_stage=1) == []
    assert said("1F1B", fsdp_reshard_after_forward="always") == []


def test_a_schedule_file_is_checked_against_ranks_and_microbatches(tmp_path: Path) -> None:
    path = tmp_path / "schedule.csv"
    path.write_text("0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n")
    key = {"pipeline_parallel_schedule_csv": str(path)}
    assert said(microbatches=2, **key) == []
    assert "schedule of 2 microbatches, and there are 4 (4 rows" in said(microbatches=4, **key)[0]
    assert "has 2 rows, one a rank; pipeline_parallel_degree is 4" in said(pp=4, microbatches=2, **key)[0]
    assert said(microbatches=2, fsdp_reshard_after_forward="always", **key) == []
    path.write_text("0F0,0I0,0W0\n1F0,1I0,1W0\n")
    assert "gradients apart" in said(microbatches=1, fsdp_reshard_after_forward="always", **key)[0]
    path.write_text("0F0,0X0\n1F0,1B0\n")
    assert "'0X0' is no pipeline action" in said(microbatches=1, **key)[0]
    assert "No such file" in said(microbatches=1, pipeline_parallel_schedule_csv=str(tmp_path / "no.csv"))[0]


@pytest.mark.parametrize("kind", ["tensor", "context"])
def test_a_traced_split_goes_without_parallelism_within_a_stage(kind: str) -> None:
    section = Parallelism(pipeline_parallel_degree=2, pipeline_parallel_split="traced")
    batch = Batch(4, 4, 1, 1)
    assert pipeline(section, Degrees(pp=2, dp_shard=2, dp_replicate=2), ORDER, 8, batch) == []
    within = Degrees(pp=2, tp=2) if kind == "tensor" else Degrees(pp=2, cp=2)
    (problem,) = pipeline(section, within, ORDER, 8, batch)
    assert f"{kind}_parallel_degree, which is 2" in str(problem)
    assert 'pipeline_parallel_split = "traced"' in str(problem)
    assert 'use "layers"' in str(problem)
    assert pipeline(section.model_copy(update={"pipeline_parallel_split": "layers"}), within, ORDER, 8, batch) == []
