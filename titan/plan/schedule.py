"""The program of each pipeline rank, and its run in time: who computes what when, who waits, what is alive.

The actions of schedules with several stages a rank are torch's own: their classes are built over placeholders for the
stages, so that a plan follows what will run, release by release. GPipe and 1F1B are written out here, since the list
that torch 2.13 keeps for them is for display (its last rank begins 1F1B with microbatch 1). A schedule file is read
as it is. The simulation knows durations and dependencies only: a forward needs the stage before it, a backward its
own forward and the stage after it, a weight gradient its input gradient, and what crosses ranks arrives a transfer
later. A rank works through its list in order, as torch does, and transfers run beside computation. Without a pipeline
the program is one stage's, a forward and a backward for each accumulation step.
"""

from __future__ import annotations

import csv
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from titan.parallelisms.stages import SINGLE_STAGE
from titan.plan.facts import Action, Kind

Program = tuple[Action, ...]
"""What one rank computes, in order."""

_CELL = re.compile(r"(\d+)(F|I|B|W)(\d+)")
_KINDS: dict[str, Kind] = {
    "FORWARD": "F",
    "FULL_BACKWARD": "B",
    "BACKWARD_INPUT": "I",
    "BACKWARD_WEIGHT": "W",
}


@dataclass(frozen=True)
class Event:
    """An action in time, in seconds since the step began."""

    rank: int
    action: Action
    start: float
    stop: float


@dataclass(frozen=True)
class Timeline:
    """A step of the pipeline. `events` are in the order of their rank's program, rank by rank."""

    events: tuple[Event, ...]
    ranks: int

    @property
    def seconds(self) -> float:
        """From the first start to the last stop."""
        return max(event.stop for event in self.events)

    def end(self, rank: int) -> float:
        """When the rank's last action stops."""
        return max(event.stop for event in self.events if event.rank == rank)

    def busy(self, rank: int) -> float:
        """Seconds in which the rank computes."""
        return sum(event.stop - event.start for event in self.events if event.rank == rank)

    @property
    def bubble(self) -> float:
        """The part of all ranks' time in which they wait, 0 to 1."""
        return 1.0 - sum(self.busy(rank) for rank in range(self.ranks)) / (self.ranks * self.seconds)


def single_program(accumulation: int) -> tuple[Program, ...]:
    """Without a pipeline: one rank, one stage, as many microbatches as accumulation steps."""
    return (tuple(Action(0, kind, step) for step in range(accumulation) for kind in ("F", "B")),)


@lru_cache(maxsize=256)
def pipeline_programs(schedule: str, pp: int, n_stages: int, microbatches: int) -> tuple[Program, ...]:
    """The program of each of `pp` ranks under one of torch's schedules, spelled as the configuration does.

    Raises ValueError where the schedule refuses these numbers.
    """
    if schedule in SINGLE_STAGE:
        warm_up = [microbatches if schedule == "GPipe" else min(microbatches, pp - rank) for rank in range(pp)]
        return tuple(_forwards_then_pairs(rank, count, microbatches) for rank, count in enumerate(warm_up))
    from torch import nn
    from torch.distributed.pipelining.schedules import get_schedule_class

    # What the constructors ask of a stage; they compute the programs of all ranks alike.
    per_rank = n_stages // pp
    stages: list[Any] = [
        SimpleNamespace(
            num_stages=n_stages,
            group_size=pp,
            group_rank=0,
            stage_index=index * pp,
            is_first=index == 0,
            is_last=False,
            submod=nn.Identity(),
        )
        for index in range(per_rank)
    ]
    chosen: Any = get_schedule_class(schedule)
    # Sends, receives and gathering are not placed: they follow from the stages, and torch takes long to place them.
    computes_only = type(schedule, (chosen,), {"_prepare_schedule_with_comms": lambda *_arguments, **_options: None})
    built = computes_only(stages, n_microbatches=microbatches)
    return tuple(tuple(_actions(built.pipeline_order[rank])) for rank in range(pp))


def _forwards_then_pairs(stage: int, warm_up: int, microbatches: int) -> Program:
    """`warm_up` forwards; then a backward and a forward in turn; then the backwards that are left."""
    program = [Action(stage, "F", microbatch) for microbatch in range(warm_up)]
    for microbatch in range(microbatches):
        program.append(Action(stage, "B", microbatch))
        if (following := warm_up + microbatch) < microbatches:
            program.append(Action(stage, "F", following))
    return tuple(program)


def _actions(order: Sequence[Any]) -> Iterator[Action]:
    for action in order:
        for part in (action.sub_actions or (action,)) if action is not None else ():
            if (kind := _KINDS.get(part.computation_type.name)) is not None:
                yield Action(part.stage_index, kind, part.microbatch_index)


def csv_programs(path: Path) -> tuple[Program, ...]:
    """The programs of a schedule file; its sends, receives and FSDP actions are left out."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    return tuple(
        tuple(
            Action(int(stage), kind, int(microbatch)) for cell in row for stage, kind, microbatch in _CELL.findall(cell)
        )
        for row in rows
    )


def live(program: Program) -> Iterator[tuple[Action, Counter[int]]]:
    """Each action with the microbatches that its rank holds activations of while it runs, counted by stage.

    A forward takes a microbatch in, a whole backward lets it go after itself; where the backward is split, the weight
    gradient does.
    """
    held: Counter[int] = Counter()
    for action in program:
        if action.kind == "F":
            held[action.stage] += 1
        yield action, Counter(held)
        if action.kind in ("B", "W"):
            held[action.stage] -= 1


def in_flight(program: Program) -> dict[int, int]:
    """The most microbatches that are alive at once, for each stage of a rank."""
    most: dict[int, int] = {}
    for _action, held in live(program):
        for stage, count in held.items():
            most[stage] = max(most.get(stage, 0), count)
    return most


def simulate(
    programs: Sequence[Program],
    duration: Callable[[Action], float],
    transfer: Callable[[int, int], float] = lambda _source, _target: 0.0,
) -> Timeline:
    """Runs the programs.

    Args:
        programs: one a rank; each stage's actions stand on one rank.
        duration: seconds of an action.
        transfer: seconds from one rank to another, by ranks; not asked where both are one.

    Raises ValueError where the programs wait for each other forever.
    """
    home = {action.stage: rank for rank, program in enumerate(programs) for action in program}
    last = max(home)
    done: dict[Action, float] = {}
    events: list[list[Event]] = [[] for _ in programs]
    queues = [deque(program) for program in programs]
    clocks = [0.0] * len(programs)

    def ready(rank: int, action: Action) -> float | None:
        time = clocks[rank]
        for needed in _needs(action, last, done):
            if needed not in done:
                return None
            source = home[needed.stage]
            time = max(time, done[needed] + (transfer(source, rank) if source != rank else 0.0))
        return time

    while any(queues):
        moved = False
        for rank, queue in enumerate(queues):
            while queue and (start := ready(rank, queue[0])) is not None:
                action = queue.popleft()
                clocks[rank] = done[action] = start + duration(action)
                events[rank].append(Event(rank, action, start, clocks[rank]))
                moved = True
        if not moved:
            waiting = {rank: queue[0] for rank, queue in enumerate(queues) if queue}
            raise ValueError(f"this schedule cannot run, every rank waits for another: {waiting}")
    return Timeline(tuple(event for row in events for event in row), len(programs))


def _needs(action: Action, last: int, done: dict[Action, float]) -> list[Action]:
    stage, microbatch = action.stage, action.microbatch
    if action.kind == "F":
        return [Action(stage - 1, "F", microbatch)] if stage else []
    if action.kind == "W":
        return [Action(stage, "I", microbatch)]
    needed = [Action(stage, "F", microbatch)]
    if stage < last:  # the next stage's gradient comes from its whole backward or from that for the input
        whole, split = Action(stage + 1, "B", microbatch), Action(stage + 1, "I", microbatch)
        needed.append(split if split in done else whole)
    return needed
