"""What our pipeline rules let through, torch's schedule classes accept; what torch refuses, our rules refuse
earlier.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.testing._internal.distributed.fake_pg import FakeStore

from titan.config.layout import Batch, Degrees
from titan.config.rules_pipeline import pipeline
from titan.config.schema import Parallelism
from titan.models.registry import Stages
from titan.parallelisms import stages as cuts

ORDER = Stages(first=("tok_embeddings",), blocks="layers", last=("norm", "output"))


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process group of that many ranks in which nothing is sent; this process is rank 0."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    yield request.param
    dist.destroy_process_group()


def torch_accepts(schedule: str, pp: int, microbatches: int) -> bool:
    number = cuts.count_stages(schedule, pp, 62)
    mine = [stage for stage, rank in enumerate(cuts.stage_ranks(schedule, pp, number)) if rank == 0]
    example = torch.empty(1, 2, device="meta")
    parts: list[Any] = [
        PipelineStage(nn.Identity(), stage, number, torch.device("cpu"), input_args=example, output_args=example)
        for stage in mine
    ]
    try:
        get_schedule_class(schedule)(parts[0] if schedule in cuts.SINGLE_STAGE else parts, n_microbatches=microbatches)
    except ValueError:
        return False
    return True


def we_accept(schedule: str, pp: int, microbatches: int) -> bool:
    section = Parallelism(pipeline_parallel_degree=pp, pipeline_parallel_schedule=schedule)  # type: ignore[arg-type]
    batch = Batch(microbatches, microbatches, 1, 1)
    return not pipeline(section, Degrees(pp=pp), ORDER, 62, batch)


@pytest.mark.parametrize("group", [2, 3, 4], indirect=True)
@pytest.mark.parametrize("schedule", cuts.SCHEDULES)
def test_our_rules_and_torchs_agree_on_the_number_of_microbatches(schedule: str, group: int) -> None:
    least = cuts.min_microbatches(schedule, group)
    ours = {number: we_accept(schedule, group, number) for number in range(1, 4 * group + 1)}
    torchs = {number: torch_accepts(schedule, group, number) for number in ours}
    # With fewer, torch builds some schedules all the same; ranks would mostly wait, and we refuse them.
    assert {number: ours[number] for number in ours if number >= least} == {
        number: torchs[number] for number in ours if number >= least
    }
    assert not any(ours[number] for number in ours if number < least)
    assert any(ours.values())
