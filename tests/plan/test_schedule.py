"""Programs and their simulation, against closed forms and against torch's real schedules on gloo ranks.

Those run over stages that keep a clock instead of computing, and hand it on in the tensors that they send: what a busy
machine does to the wall clock is not in it, so that times must be equal. Two more cases sleep for real.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from tests.distributed.ranks import run_ranks
from titan.parallelisms.stages import SCHEDULES, SINGLE_STAGE, SPLIT_BACKWARD, stage_ranks
from titan.plan.facts import Action, Kind
from titan.plan.schedule import csv_programs, in_flight, live, pipeline_programs, simulate, single_program

UNIT: dict[Kind, float] = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}


def unit(action: Action) -> float:
    return UNIT[action.kind]


def stages_of(schedule: str, pp: int) -> int:
    return pp if schedule in SINGLE_STAGE else 2 * pp


@pytest.mark.quick
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("pp", "microbatches"), [(2, 8), (4, 8)])
def test_each_stage_takes_each_microbatch_forward_and_backward_once(schedule: str, pp: int, microbatches: int) -> None:
    n_stages = stages_of(schedule, pp)
    programs = pipeline_programs(schedule, pp, n_stages, microbatches)
    done = [action for program in programs for action in program]
    assert len(done) == len(set(done))
    every = {(stage, microbatch) for stage in range(n_stages) for microbatch in range(microbatches)}

    def those(*kinds: str) -> list[tuple[int, int]]:
        return sorted((action.stage, action.microbatch) for action in done if action.kind in kinds)

    assert those("F") == those("B", "I") == those("B", "W") == sorted(every)
    homes = stage_ranks(schedule, pp, n_stages)
    assert all(homes[action.stage] == rank for rank, program in enumerate(programs) for action in program)


@pytest.mark.quick
@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
def test_the_bubble_of_one_stage_a_rank_is_the_textbook_one(schedule: str) -> None:
    for pp, microbatches in [(2, 2), (4, 8), (8, 64)]:
        found = simulate(pipeline_programs(schedule, pp, pp, microbatches), unit)
        assert found.bubble == pytest.approx((pp - 1) / (microbatches + pp - 1))


@pytest.mark.quick
def test_interleaving_divides_the_bubble_and_zero_bubble_schedules_nearly_close_it() -> None:
    pp, microbatches, bubbles = 4, 16, {}
    for schedule in SCHEDULES:
        per_rank = stages_of(schedule, pp) // pp
        programs = pipeline_programs(schedule, pp, per_rank * pp, microbatches)
        bubbles[schedule] = simulate(programs, lambda action, n=per_rank: unit(action) / n).bubble  # type: ignore[misc]
    assert bubbles["Interleaved1F1B"] == pytest.approx((pp - 1) / (2 * microbatches + pp - 1))
    for schedule in SPLIT_BACKWARD:
        assert bubbles[schedule] < bubbles["Interleaved1F1B"] / 2


@pytest.mark.quick
def test_microbatches_in_flight() -> None:
    assert [in_flight(program) for program in pipeline_programs("1F1B", 4, 4, 8)] == [{0: 4}, {1: 3}, {2: 2}, {3: 1}]
    assert [in_flight(program) for program in pipeline_programs("GPipe", 2, 2, 8)] == [{0: 8}, {1: 8}]
    assert in_flight(single_program(3)[0]) == {0: 1}
    first, last = pipeline_programs("ZBVZeroBubble", 4, 8, 8)[0], pipeline_programs("ZBVZeroBubble", 4, 8, 8)[3]
    assert in_flight(first) == {0: 8, 7: 1}
    assert sum(in_flight(last).values()) <= 9
    *_, (_, left) = live(first)
    assert sum(left.values()) == 1  # the last weight gradient still holds what it is taken from


@pytest.mark.quick
def test_a_transfer_delays_the_next_stage_and_not_the_sender() -> None:
    programs = pipeline_programs("GPipe", 2, 2, 1)
    found = simulate(programs, unit, lambda source, target: 0.5)
    times = {event.action: (event.start, event.stop) for event in found.events}
    assert times[Action(1, "F", 0)] == (1.5, 2.5)
    assert times[Action(0, "B", 0)] == (5.0, 7.0)


@pytest.mark.quick
def test_programs_that_wait_for_each_other_are_refused_with_what_they_wait_for() -> None:
    programs = ((Action(0, "B", 0), Action(0, "F", 0)), (Action(1, "F", 0), Action(1, "B", 0)))
    with pytest.raises(ValueError, match=r"every rank waits.*stage=0, kind='B'"):
        simulate(programs, unit)


@pytest.mark.quick
def test_a_schedule_file_gives_the_program_that_it_was_written_from(tmp_path: Path) -> None:
    programs = pipeline_programs("InterleavedZeroBubble", 2, 4, 4)
    path = tmp_path / "schedule.csv"
    rows = [",".join(["0UNSHARD", *(f"{a.stage}{a.kind}{a.microbatch}" for a in row), "1RECV_F3"]) for row in programs]
    path.write_text("\n".join(rows))
    assert csv_programs(path) == programs


class Clock:
    """The time of one rank, in units, and how much of it was work."""

    def __init__(self, seconds_a_unit: float) -> None:
        self.seconds, self.now, self.busy = seconds_a_unit, 0.0, 0.0

    def work(self, given: Tensor, units: float) -> float:
        """Begins when `given` was ready."""
        time.sleep(units * self.seconds)
        self.now = max(self.now, given.max().item()) + units
        self.busy += units
        return self.now


class Input(torch.autograd.Function):
    """The stage's forward, and the gradient of its input: both end at the time that they return."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Clock, units: float) -> Tensor:
        ctx.clock, ctx.units = clock, units
        return torch.full_like(x, clock.work(x, units))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return torch.full_like(grad, ctx.clock.work(grad, ctx.units)), None, None


class Weight(torch.autograd.Function):
    """The gradient of the weight. Made after `Input`, so that a whole backward comes to it first."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, clock: Clock, units: float) -> Tensor:
        ctx.clock, ctx.units = clock, units
        return torch.zeros_like(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ctx.clock.work(grad, ctx.units)
        return grad, None, None


class ClockStage(nn.Module):
    """A forward of `units`, as much for the gradient of the input, as much for that of the weight."""

    def __init__(self, clock: Clock, units: float) -> None:
        super().__init__()
        self.clock, self.units = clock, units
        self.weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = Input.apply(x, self.clock, self.units) + Weight.apply(self.weight, self.clock, self.units)
        return out


def run_clocks(schedule: str, microbatches: int, seconds_a_unit: float) -> tuple[float, float, float]:
    """One step of torch's schedule: this rank's clock at its end, how much of that was work, seconds by the wall."""
    rank, pp = dist.get_rank(), dist.get_world_size()
    n_stages = stages_of(schedule, pp)
    clock = Clock(0.0)
    example = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    stages = [
        PipelineStage(
            ClockStage(clock, pp / n_stages),
            stage,
            n_stages,
            torch.device("cpu"),
            input_args=example,
            output_args=example,
        )
        for stage, home in enumerate(stage_ranks(schedule, pp, n_stages))
        if home == rank
    ]
    chosen: Any = get_schedule_class(schedule)
    given: Any = stages[0] if issubclass(chosen, PipelineScheduleSingle) else stages
    built = chosen(given, n_microbatches=microbatches, loss_fn=lambda out, _: out.sum() * 0.0, scale_grads=False)
    first = any(stage.is_first for stage in stages)
    # The first input needs a gradient too, so that all stages have the same work.
    rows = torch.zeros(microbatches, 1, dtype=torch.float64, requires_grad=first)
    for seconds in (0.0, seconds_a_unit):  # the first step connects the ranks
        clock.__init__(seconds)  # type: ignore[misc]
        dist.barrier()
        began = time.perf_counter()
        built.step(*((rows,) if first else ()), target=rows if any(stage.is_last for stage in stages) else None)
        wall = time.perf_counter() - began
    return clock.now, clock.busy, wall


def predicted(schedule: str, pp: int, microbatches: int) -> Any:
    n_stages = stages_of(schedule, pp)
    programs = pipeline_programs(schedule, pp, n_stages, microbatches)
    return simulate(programs, lambda action: UNIT[action.kind] * pp / n_stages)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("pp", "microbatches"), [(2, 4), (4, 8)])
def test_each_rank_ends_when_its_clock_in_the_real_schedule_says(schedule: str, pp: int, microbatches: int) -> None:
    timeline = predicted(schedule, pp, microbatches)
    ends = [max(event.stop for event in timeline.events if event.rank == rank) for rank in range(pp)]
    for rank, (now, busy, _wall) in enumerate(run_ranks(run_clocks, pp, schedule, microbatches, 0.0)):
        assert (now, busy) == pytest.approx((ends[rank], timeline.busy(rank)))


@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble"])
def test_the_bubble_is_that_of_ranks_which_sleep(schedule: str) -> None:
    """The best of three, as other processes may be at work here."""
    pp, microbatches, unit_seconds = 2, 4, 0.08
    timeline = predicted(schedule, pp, microbatches)
    bubbles = []
    while len(bubbles) < 3 and (not bubbles or abs(bubbles[-1] - timeline.bubble) > 0.05):
        _now, busy, wall = zip(*run_ranks(run_clocks, pp, schedule, microbatches, unit_seconds), strict=True)
        bubbles.append(1.0 - sum(busy) * unit_seconds / (pp * max(wall)))
    assert bubbles[-1] == pytest.approx(timeline.bubble, abs=0.05)
