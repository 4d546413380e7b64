"""What every rank sends in a step, by mesh dimension and operation: the collectives of the traced pieces, of FSDP's
units and of the pipeline's program, counted as `memory_step` plays it.

Exact in calls and bytes against a hook on torch.distributed in real runs, recomputed collectives included. By formula:

  - parameters: every unit's padded size in the compute dtype, for each time that it is gathered;
  - gradients: the same in the reduction's dtype, and a shard of it over dp_replicate;
  - tensor parallel: (rows, seq / cp, dim) a collective, twice a block forward and twice backward, and the ends;
  - ring: K and V of the local sequence (cp - 1) times forward, backward those and their gradients in float32;
  - pipeline: (rows, seq / cp / tp, dim) a microbatch and link, each way.

Left out is what only some steps do: logs, saves, audits. Buffers of a first step, too, and collectives over one rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from titan.config import Resolved
from titan.plan.facts import Dimension, Operation, Traffic
from titan.plan.memory import play
from titan.plan.memory_account import Line, Tally
from titan.plan.memory_step import RankStep
from titan.plan.parameters import itemsize, shard, stages_of, units

_HIDDEN = {("fsdp", "all_gather"), ("fsdp", "reduce_scatter"), ("dp_replicate", "all_reduce")}
"""What runs beside computation, as `fully_shard` prefetches and reduces."""


def communication(resolved: Resolved, *, device_type: str = "cuda") -> list[Traffic]:
    """All ranks' traffic; raises what `titan.plan.memory.play` does."""
    return [line for step in play(resolved, device_type=device_type) for line in traffic_of(step)]


def traffic_of(step: RankStep) -> list[Traffic]:
    """The traffic of one rank of this pipeline rank, whose step was played."""
    resolved, tally = step.resolved, Tally(step.tally.calls.copy(), step.tally.bytes.copy())
    _tied(tally, step)
    world = resolved.degrees.world_size
    tally.add(Line("world", "all_reduce", "valid tokens, and whether to stop", world), 3 * 8)
    tally.add(Line("world", "all_reduce", "norm of the gradients", world), 4)
    ring = resolved.config.parallelism.context_parallel_rotate_method == "alltoall"
    return [
        Traffic(
            rank=step.rank,
            dimension=line.dimension,
            operation=line.operation,
            purpose=line.purpose,
            group_size=line.group_size,
            calls=calls,
            bytes=tally.bytes[line],
            exposed=_exposed(line.dimension, line.operation, ring),
        )
        for line, calls in sorted(tally.calls.items(), key=lambda item: (item[0].dimension, -tally.bytes[item[0]]))
    ]


def _exposed(dimension: Dimension, operation: Operation, ring: bool) -> bool:
    return (dimension, operation) not in _HIDDEN and not (dimension == "cp" and ring)


def _tied(tally: Tally, step: RankStep) -> None:
    """Gradients of a tied parameter, exchanged between the ranks of the first and the last stage."""
    resolved, plan = step.resolved, stages_of(step.resolved)
    ends = {plan.ranks[0], plan.ranks[-1]}
    pairs: Sequence[tuple[str, str]] = resolved.spec.tied(resolved.model_args)
    if not pairs or len(ends) < 2 or step.rank not in ends:
        return
    held = 0 if step.rank == plan.ranks[0] else -1
    found = units(resolved.spec, resolved.model_args, plan.modules[held], tp=resolved.degrees.tp)
    shapes = {fqn: shape for unit in found for fqn, shape in unit.shapes}
    for names in pairs:
        size = sum(
            math.prod(shard(shapes[fqn], resolved.degrees.fsdp)) * itemsize(resolved.config.training.dtype)
            for fqn in names
            if fqn in shapes
        )
        tally.add(Line("pp", "send", "gradients of tied parameters", resolved.degrees.pp), size)
