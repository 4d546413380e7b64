"""Batch arithmetic: how the rows of one optimizer step are spread over ranks, accumulation steps and microbatches.

`global_batch_size` is the batch; `local_batch_size` caps the rows that a rank holds at once, so that degrees can change
without changing the run. The largest divisor of global / dp within the cap is used. Messages speak of the user's own
keys.
"""

from __future__ import annotations

from titan.config.layout import Batch
from titan.config.problems import Problem
from titan.config.schema_parallelism import Parallelism
from titan.config.schema_training import Training

GLOBAL, LOCAL = "training.global_batch_size", "training.local_batch_size"
MICROBATCH = "parallelism.pipeline_parallel_microbatch_size"


def resolve_batch(
    training: Training, parallelism: Parallelism, batch_ranks: int
) -> tuple[Batch | None, list[Problem], list[str]]:
    """The batch, or its problems; and warnings. `batch_ranks` is the number of ranks that read different rows.

    Without a pipeline the microbatch is all rows of a forward.
    """
    total, cap = training.global_batch_size, training.local_batch_size
    piped = parallelism.pipeline_parallel_degree > 1
    unit = parallelism.pipeline_parallel_microbatch_size if piped else 1
    if total == -1 and cap == -1:
        text = f"with {LOCAL} = -1 as well, nothing says how large the batch is: set {GLOBAL}."
        return None, [Problem(GLOBAL, text, "-1")], []
    if total == -1:
        if cap % unit:
            text = f"must be a multiple of {MICROBATCH} = {unit}; {_nearest(cap, unit)}."
            return None, [Problem(LOCAL, text, str(cap))], []
        return Batch(cap * batch_ranks, cap, 1, unit if piped else cap), [], []
    if total % batch_ranks:
        text = (
            f"must divide by the {batch_ranks} data-parallel ranks (data_parallel_replicate_degree x "
            f"data_parallel_shard_degree); {_nearest(total, batch_ranks)}."
        )
        return None, [Problem(GLOBAL, text, str(total))], []
    each = total // batch_ranks
    cap = each if cap == -1 else min(cap, each)
    rows = next((rows for rows in range(cap, 0, -1) if each % rows == 0 and rows % unit == 0), 0)
    if not rows:
        limit = "" if training.local_batch_size == -1 else f" and at most {LOCAL} = {training.local_batch_size}"
        text = (
            f"{total} / {batch_ranks} data-parallel ranks = {each} rows a rank, which has no divisor that is a "
            "multiple of "
            f"{MICROBATCH} = {unit}{limit}: change one of them."
        )
        return None, [Problem(GLOBAL, text, str(total))], []
    warnings = []
    if rows * 2 <= cap and rows < each and cap > unit:
        warnings.append(
            f"{LOCAL} = {training.local_batch_size} allows {cap} rows at once, but the largest divisor of the {each} "
            "rows a "
            f"rank ({GLOBAL} = {total} / {batch_ranks} data-parallel ranks) within it is {rows}: {each // rows} "
            "accumulation steps."
        )
    return Batch(total, rows, each // rows, unit if piped else rows), [], warnings


def _nearest(value: int, unit: int) -> str:
    below, above = value // unit * unit, -(-value // unit) * unit
    return f"{below} and {above} are the nearest" if below else f"{above} is the nearest"
