"""Which layers stand in which pipeline stage, and which rank holds which stage: pure functions, no torch.

A check and a plan ask the same questions as a run, before any process exists. Stages are named by the FQNs of the
modules that they hold; layers keep their global numbers, so checkpoints do not depend on the split.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from titan.models.registry import Stages

SINGLE_STAGE = ("GPipe", "1F1B")
"""Schedules with one stage a rank; the others take several."""
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
"""Schedules in which rank r holds stages r and 2 x pp - 1 - r."""
SPLIT_BACKWARD = ("InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
"""Schedules that compute input and weight gradients apart."""
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")

_ACTION = re.compile(r"(\d+)(F|I|B|W|UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)(\d*)")
_COMPUTE = ("F", "I", "B", "W")


def count_stages(
    schedule: str,
    pp: int,
    n_layers: int,
    *,
    layers_per_stage: int | None = None,
    first_less: int = 1,
    last_less: int = 1,
) -> int:
    """Number of virtual stages. Raises ValueError where `layers_per_stage` gives a number that the schedule cannot
    take.
    """
    if layers_per_stage is None:
        return pp if schedule in SINGLE_STAGE else 2 * pp
    stages = -(-(n_layers + first_less + last_less) // layers_per_stage)
    wanted = (
        f"{pp} (one a rank)"
        if schedule in SINGLE_STAGE
        else f"{2 * pp} (two a rank)"
        if schedule in V_SHAPED
        else f"a multiple of {pp}, at least {2 * pp}"
    )
    fits = (
        stages == pp
        if schedule in SINGLE_STAGE
        else stages == 2 * pp
        if schedule in V_SHAPED
        else stages % pp == 0 and stages >= 2 * pp
    )
    if not fits:
        raise ValueError(
            f"pipeline_parallel_layers_per_stage = {layers_per_stage} makes {stages} stages of {n_layers} layers "
            f"(+ {first_less} for the first stage, + {last_less} for the last); {schedule} on {pp} ranks takes {wanted}"
        )
    return stages


def split_layers(n_layers: int, n_stages: int, *, first_less: int = 1, last_less: int = 1) -> list[range]:
    """Contiguous layers of each stage; the ends hold fewer, by the weight of the embedding and of the head in layers.

    Every layer is in exactly one stage. Raises ValueError where a stage would be left empty.
    """
    weight, extra = divmod(n_layers + first_less + last_less, n_stages)
    sizes = [weight + (1 if stage < extra else 0) for stage in range(n_stages)]
    sizes[0] -= first_less
    sizes[-1] -= last_less
    middle = sizes[1:-1]
    if min(sizes[0], sizes[-1]) < 0 or (middle and min(middle) < 1):
        raise ValueError(
            f"{n_layers} layers do not fill {n_stages} pipeline stages with first_stage_less_layers = {first_less} and "
            f"last_stage_less_layers = {last_less}: that leaves {sizes} layers a stage; use fewer stages or "
            "smaller weights"
        )
    starts = [sum(sizes[:stage]) for stage in range(n_stages)]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def stage_modules(order: Stages, layers: Sequence[range]) -> list[list[str]]:
    """FQNs of the modules of each stage, from the layers of each."""
    named = [[f"{order.blocks}.{layer}" for layer in stage] for stage in layers]
    named[0] = [*order.first, *named[0]]
    named[-1] = [*named[-1], *order.last]
    return named


def check_modules(order: Stages, n_layers: int, parts: Sequence[Sequence[str]]) -> list[str]:
    """What is wrong with a user's own list of FQNs a stage: each module once, all of them, in the order of the
    model.
    """
    wanted = [*order.first, *(f"{order.blocks}.{layer}" for layer in range(n_layers)), *order.last]
    given = [fqn for part in parts for fqn in part]
    found = [f"no module {fqn!r} in this model" for fqn in given if fqn not in wanted]
    found += [f"{fqn!r} stands in {given.count(fqn)} stages" for fqn in wanted if given.count(fqn) > 1]
    if missing := [fqn for fqn in wanted if fqn not in given]:
        found.append(f"no stage holds {', '.join(missing)}")
    if not found and given != wanted:
        found.append(f"modules must follow the order of the model: {', '.join(wanted)}")
    found += [f"stage {number} is empty" for number, part in enumerate(parts) if not part]
    return found


def stage_ranks(schedule: str, pp: int, n_stages: int) -> list[int]:
    """The pp rank that holds each stage."""
    if schedule in V_SHAPED:
        return [stage if stage < pp else 2 * pp - 1 - stage for stage in range(n_stages)]
    return [stage % pp for stage in range(n_stages)]


def min_microbatches(schedule: str, pp: int) -> int:
    """Fewest microbatches that the schedule runs with."""
    if schedule == "DualPipeV":
        return 2 * pp
    return 1 if schedule == "GPipe" else pp


def csv_actions(path: Path) -> list[list[tuple[int, str]]]:
    """(stage, kind) of each action of each rank of a schedule file, one row a rank. Raises ValueError where a cell
    is no action.
    """
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    ranks = []
    for number, row in enumerate(rows):
        actions = []
        for cell in (cell.strip() for cell in row):
            found = _ACTION.findall(cell)
            if cell and not found:
                raise ValueError(f"{path}, row {number + 1}: {cell!r} is no pipeline action (0F0, 1B2, 0SEND_F1, ...)")
            actions += [(int(stage), kind) for stage, kind, _microbatch in found]
        ranks.append(actions)
    return ranks


def csv_stage_ranks(path: Path) -> list[int]:
    """The pp rank that holds each stage, from who computes it. Raises ValueError where a stage has two ranks or
    none.
    """
    holders: dict[int, set[int]] = {}
    for rank, actions in enumerate(csv_actions(path)):
        for stage, kind in actions:
            if kind in _COMPUTE:
                holders.setdefault(stage, set()).add(rank)
    for stage in range(max(holders, default=-1) + 1):
        if len(holders.get(stage, ())) != 1:
            raise ValueError(
                f"{path}: stage {stage} is computed by ranks {sorted(holders.get(stage, ()))}; each stage has exactly "
                "one"
            )
    return [holders[stage].pop() for stage in sorted(holders)]


def csv_has_communication(path: Path) -> bool:
    """Whether sends and receives are in the file, or are to be added."""
    return any(kind not in _COMPUTE for actions in csv_actions(path) for _stage, kind in actions)


def splits_backward(schedule: str, csv_file: Path | None = None) -> bool:
    """Whether input and weight gradients are computed apart: such schedules skip FSDP's backward hooks."""
    if csv_file is not None:
        return any(kind in ("I", "W") for actions in csv_actions(csv_file) for _stage, kind in actions)
    return schedule in SPLIT_BACKWARD
