"""Checkpointing under a split backward: by operator refused, by block warned about, both only where it is so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from titan.config.rules_checkpointing import by_operator, whole_blocks
from titan.config.schema import ActivationCheckpoint, Compile, Parallelism

pytestmark = pytest.mark.quick
BY_OPERATOR = ActivationCheckpoint(mode="selective", selective_ac_option="op")
EAGER, COMPILED = Compile(), Compile(enable=True)


def pipeline(schedule: str, **keys: Any) -> Parallelism:
    return Parallelism.model_validate({"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": schedule, **keys})


@pytest.mark.parametrize("schedule", ["InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"])
def test_by_operator_is_refused_with_three_ways_out(schedule: str) -> None:
    (problem,) = by_operator(BY_OPERATOR, pipeline(schedule), EAGER)
    for part in ("activation_checkpoint.selective_ac_option", schedule, "compile.enable", "Interleaved1F1B", '"none"'):
        assert part in str(problem)


def test_whole_blocks_are_a_warning() -> None:
    (full,) = whole_blocks(ActivationCheckpoint(mode="full"), pipeline("ZBVZeroBubble"), EAGER)
    assert '"full" under ZBVZeroBubble needs more memory' in full
    assert whole_blocks(ActivationCheckpoint(mode="none"), pipeline("ZBVZeroBubble"), EAGER) == []


def test_nothing_is_said_of_other_schedules_compiled_blocks_or_no_pipeline() -> None:
    alone = pipeline("ZBVZeroBubble", pipeline_parallel_degree=1)
    for parallelism, compile in ((pipeline("1F1B"), EAGER), (pipeline("DualPipeV"), COMPILED), (alone, EAGER)):
        assert by_operator(BY_OPERATOR, parallelism, compile) == []
        assert whole_blocks(BY_OPERATOR, parallelism, compile) == []


def test_a_schedule_file_is_asked_what_it_does(tmp_path: Path) -> None:
    (tmp_path / "split.csv").write_text("0F0,0I0,0W0\n1F0,1I0,1W0\n")
    (tmp_path / "whole.csv").write_text("0F0,0B0\n1F0,1B0\n")
    split, whole = (
        pipeline("1F1B", pipeline_parallel_schedule_csv=str(tmp_path / name)) for name in ("split.csv", "whole.csv")
    )
    assert len(by_operator(BY_OPERATOR, split, EAGER)) == 1
    assert by_operator(BY_OPERATOR, whole, EAGER) == []
