"""Rules of pipeline parallelism: stages against layers, schedule against microbatches and resharding.

What torch's schedules demand (torch.distributed.pipelining.schedules, 2.13) is asked here in advance, because torch
says it late: a shape error in the first step, or wrong gradients with no error at all.
"""

from __future__ import annotations

from pathlib import Path

from titan.config.layout import Batch, Degrees
from titan.config.problems import Problem
from titan.config.schema_parallelism import Parallelism
from titan.models.registry import Stages
from titan.parallelisms import stages as cuts

_STAGES = "parallelism.module_fqns_per_model_part"
_SCHEDULE = "parallelism.pipeline_parallel_schedule"
_CSV = "parallelism.pipeline_parallel_schedule_csv"
_ROUNDS = ("Interleaved1F1B", "InterleavedZeroBubble")


def pipeline(
    parallelism: Parallelism, degrees: Degrees, order: Stages, n_layers: int, batch: Batch | None
) -> list[Problem]:
    """Every problem of the pipeline; `batch` is None where the batch itself has one."""
    if degrees.pp == 1:
        return []
    if parallelism.pipeline_parallel_schedule_csv:
        problems, wanted = _csv(parallelism, degrees, batch)
        if problems:
            return problems
    else:
        wanted = None
        problems = [] if batch is None else _microbatches(parallelism.pipeline_parallel_schedule, degrees.pp, batch)
    problems += _split(parallelism, degrees.pp, order, n_layers, wanted)
    return problems + _reshard(parallelism) + _traced(parallelism, degrees)


def _split(parallelism: Parallelism, pp: int, order: Stages, n_layers: int, wanted: int | None) -> list[Problem]:
    """The layers fill the stages. `wanted` is the number of stages of a schedule file."""
    schedule = parallelism.pipeline_parallel_schedule
    if (parts := parallelism.module_fqns_per_model_part) is not None:
        found = [Problem(_STAGES, f"{message}.") for message in cuts.check_modules(order, n_layers, parts)]
        fits = len(parts) == wanted if wanted else _stages_fit(schedule, pp, len(parts))
        if not fits:
            need = str(wanted) if wanted else _stages_needed(schedule, pp)
            found.append(Problem(_STAGES, f"{len(parts)} stages; {schedule} on {pp} ranks takes {need}."))
        return found
    first = parallelism.pipeline_parallel_first_stage_less_layers
    last = parallelism.pipeline_parallel_last_stage_less_layers
    per_stage = parallelism.pipeline_parallel_layers_per_stage
    try:
        number = wanted or cuts.count_stages(
            schedule, pp, n_layers, layers_per_stage=per_stage, first_less=first, last_less=last
        )
        cuts.split_layers(n_layers, number, first_less=first, last_less=last)
    except ValueError as error:
        key = (
            "parallelism.pipeline_parallel_degree"
            if per_stage is None
            else "parallelism.pipeline_parallel_layers_per_stage"
        )
        return [Problem(key, f"{error}.", str(pp if per_stage is None else per_stage))]
    return []


def _stages_fit(schedule: str, pp: int, number: int) -> bool:
    if schedule in cuts.SINGLE_STAGE:
        return number == pp
    return number == 2 * pp if schedule in cuts.V_SHAPED else number % pp == 0 and number >= 2 * pp


def _stages_needed(schedule: str, pp: int) -> str:
    if schedule in cuts.SINGLE_STAGE:
        return f"{pp}, one a rank"
    return f"{2 * pp}, two a rank" if schedule in cuts.V_SHAPED else f"a multiple of {pp}, at least {2 * pp}"


def _microbatches(schedule: str, pp: int, batch: Batch) -> list[Problem]:
    """Enough microbatches, and for the interleaved schedules equally many in each round."""
    number = batch.microbatches
    made = (
        f"there are {number} ({batch.rows} rows at once / pipeline_parallel_microbatch_size = {batch.microbatch_size})"
    )
    if number < (least := cuts.min_microbatches(schedule, pp)):
        text = (
            f"needs at least {least} microbatches on {pp} ranks, {made}: raise training.global_batch_size or "
            "training.local_batch_size, or lower pipeline_parallel_microbatch_size."
        )
        return [Problem(_SCHEDULE, text, f'"{schedule}"')]
    rounds = max(1, number // pp)
    if schedule in _ROUNDS and number % rounds:
        text = (
            f"needs the microbatches to divide by their rounds of {pp} ({number} // {pp} = {rounds}), {made}: make "
            "them a "
            f"multiple of {pp}, {number // pp * pp} or {-(-number // pp) * pp}."
        )
        return [Problem(_SCHEDULE, text, f'"{schedule}"')]
    return []


def _csv(parallelism: Parallelism, degrees: Degrees, batch: Batch | None) -> tuple[list[Problem], int | None]:
    """A schedule file that can be read, for these ranks and microbatches; and its number of stages."""
    path = Path(parallelism.pipeline_parallel_schedule_csv)
    value = f'"{path}"'
    try:
        ranks = cuts.csv_stage_ranks(path)
        actions = cuts.csv_actions(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return [Problem(_CSV, f"cannot be used: {reason}.", value)], None
    if len(actions) != degrees.pp:
        text = f"has {len(actions)} rows, one a rank; pipeline_parallel_degree is {degrees.pp}."
        return [Problem(_CSV, text, value)], None
    forwards = sum(1 for stage, kind in actions[ranks[0]] if stage == 0 and kind == "F")
    if batch is not None and batch.microbatches != forwards:
        text = (
            f"is a schedule of {forwards} microbatches, and there are {batch.microbatches} ({batch.rows} rows at once "
            "/ "
            f"pipeline_parallel_microbatch_size = {batch.microbatch_size})."
        )
        return [Problem(_CSV, text, value)], None
    return [], len(ranks)


def _reshard(parallelism: Parallelism) -> list[Problem]:
    """Schedules that split the backward skip the hooks that gather parameters again: gradients would be wrong,
    silently."""
    reshard = parallelism.fsdp_reshard_after_forward
    csv_file = parallelism.pipeline_parallel_schedule_csv
    schedule = parallelism.pipeline_parallel_schedule
    if reshard in ("default", "never") or not cuts.splits_backward(schedule, Path(csv_file) if csv_file else None):
        return []
    text = (
        f"{csv_file or schedule} computes input and weight gradients apart, and resharding would make them wrong: use "
        "default "
        "or never (parameters stay gathered during a step)."
    )
    return [
        Problem(
            "parallelism.fsdp_reshard_after_forward", text, f'"{reshard}"' if isinstance(reshard, str) else str(reshard)
        )
    ]


def _traced(parallelism: Parallelism, degrees: Degrees) -> list[Problem]:
    """A trace is that of one device: attention is an operator in it, and products are no nn.Linear."""
    cut = {"tensor": degrees.tp, "context": degrees.cp}
    if parallelism.pipeline_parallel_split != "traced":
        return []
    return [
        Problem(
            "parallelism.pipeline_parallel_split",
            f"goes without {kind}_parallel_degree, which is {degree}: what is traced on one device cannot be cut "
            'afterwards; use "layers".',
            '"traced"',
        )
        for kind, degree in cut.items()
        if degree > 1
    ]
