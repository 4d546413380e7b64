"""Memory of a step: the peak of every pipeline rank, what it is made of, and where it is.

Bytes are those of live tensors. A device holds more: its context (about 0.5 to 1 GiB on CUDA), the backend's own
buffers, and what its allocator cannot reuse. Ranks of the other dimensions hold the same, or less where a dimension
does not divide: the plan speaks of the first, whose shards are the largest. Measured on the CPU in real runs, the
prediction is within a few percent (scripts/plan_check.py).
"""

from __future__ import annotations

from collections import Counter

from titan.config import Resolved
from titan.models.registry import ModelSpec
from titan.plan.activations import UPSTREAM
from titan.plan.facts import Memory
from titan.plan.memory_account import (
    BUFFERS,
    GRADIENTS,
    LOGITS,
    OPTIMIZER,
    PARAMETERS,
    UNSHARDED,
    UNSHARDED_GRADIENTS,
)
from titan.plan.memory_step import RankStep, programs_of

_WORDS = (PARAMETERS, OPTIMIZER, GRADIENTS, UNSHARDED, UNSHARDED_GRADIENTS, BUFFERS, LOGITS, "inputs")


def play(resolved: Resolved, *, device_type: str = "cuda", ends_only: bool = False) -> list[RankStep]:
    """The step of each pipeline rank, from which `memory` and `communication` read; of the first and the last alone
    with `ends_only`: the one holds the most microbatches, the other the logits.

    Raises ValueError for a schedule that the stages cannot take.
    """
    programs = programs_of(resolved)
    ranks = sorted({0, len(programs) - 1}) if ends_only else range(len(programs))
    return [RankStep(resolved, rank, programs[rank], device_type) for rank in ranks]


def memory(resolved: Resolved, *, device_type: str = "cuda") -> list[Memory]:
    """The peak of each pipeline rank; raises what `play` does."""
    return [memory_of(step) for step in play(resolved, device_type=device_type)]


def memory_of(step: RankStep) -> Memory:
    """The peak of a rank whose step was played."""
    items: Counter[str] = Counter()
    for category, size in step.ledger.peak.items():
        items[word(category, step.resolved.spec, sharded=step.sizes.ranks > 0)] += size
    kinds = sorted({kind for stage in step.stages.values() for kind in stage.kinds})
    return Memory(
        rank=step.rank,
        stages=tuple(step.stages),
        items={name: size for name, size in items.most_common() if size},
        where=step.ledger.where,
        detail={
            f"{kind}, {category}": size
            for kind in kinds
            for category, size in step.trace.segments[f"forward {kind}"].added.items()
            if size > 0
        },
    )


def word(category: str, spec: ModelSpec, *, sharded: bool) -> str:
    """What a report calls a category; without FSDP gradients have one form only."""
    head = category.partition(".")[0]
    if category == UNSHARDED_GRADIENTS and not sharded:
        return GRADIENTS
    if category in _WORDS or category.startswith("temporaries"):
        return category
    if category == UPSTREAM:
        return "activations.gradients"
    if head in spec.stages.first:
        return "activations.embedding"
    if "norm" in head:
        return "activations.norm"
    if category == "loss" or head in spec.stages.last:
        return LOGITS
    return f"activations.{head}"
