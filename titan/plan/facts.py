"""Records that the parts of the plan exchange. Bytes are ints, seconds floats, ranks those of the pp dimension.

A plan speaks of one rank a pipeline rank: the heaviest of those that share it, since ranks of the other dimensions hold
the same but for uneven shards. `Traffic.bytes` counts what a hook on torch.distributed would count there, so that a
prediction can be compared with a run and must be equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["F", "B", "I", "W"]
"""Forward; backward whole; backward for the input only; backward for the weights only."""

Dimension = Literal["pp", "dp_replicate", "fsdp", "cp", "tp", "world"]
Operation = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send", "broadcast"]


@dataclass(frozen=True)
class Action:
    """One step of a pipeline rank's program. Sends and receives are not listed; they follow from the stages."""

    stage: int
    kind: Kind
    microbatch: int


@dataclass(frozen=True)
class Memory:
    """What one pipeline rank holds at its peak.

    Attributes:
        rank: the pp rank.
        stages: its virtual stages.
        items: bytes by what they are for, at the moment of the peak; they sum to `peak`. The keys are words of the
            report: parameters, unsharded parameters, gradients, unsharded gradients, optimizer state, activations.norm,
            activations.attention, activations.feed_forward, ..., logits and loss, communication buffers, inputs.
        where: the moment of the peak, such as "backward of microbatch 0 in stage 3" or "optimizer step".
    """

    rank: int
    stages: tuple[int, ...]
    items: dict[str, int]
    where: str
    detail: dict[str, int] = field(default_factory=dict)

    @property
    def peak(self) -> int:
        return sum(self.items.values())


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind that one rank of pp rank `rank` issues in a step.

    Attributes:
        dimension: of the mesh; the group has `group_size` ranks.
        purpose: what moves, such as "parameters", "gradients", "hidden states", "keys and values", "norm".
        calls: in a step.
        bytes: over all calls, the size of the whole: the output of an all-gather, the input of a reduce-scatter, the
            tensor of an all-reduce, all-to-all, broadcast or send.
        exposed: whether computation has to wait for it, as far as the composition says (a cost model may refine it).
    """

    rank: int
    dimension: Dimension
    operation: Operation
    purpose: str
    group_size: int
    calls: int
    bytes: int
    exposed: bool

    @property
    def wire_bytes(self) -> float:
        """Bytes that the rank sends, by the ring algorithm: (n-1)/n of the whole, twice that for an all-reduce."""
        if self.operation == "send":
            return float(self.bytes)
        share = (self.group_size - 1) / self.group_size
        return self.bytes * share * (2 if self.operation == "all_reduce" else 1)
