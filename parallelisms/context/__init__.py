"""Context parallelism: each rank of the cp group holds a part of every sequence, and attention reaches across.

Three methods behind one function, `attend_impl`, for causal attention with grouped K/V heads on any backend:
  - allgather: K and V of the whole sequence on each rank; one collective each way; most memory;
  - alltoall: a ring; K and V of one peer at a time, sent on while they are used (Ring Attention, arXiv:2310.01889);
  - ulysses: heads for sequence and back (DeepSpeed Ulysses, arXiv:2309.14509); heads must divide by cp.
`headtail` gives rank r the chunks r and 2cp-1-r of 2cp, so that under a causal mask each has the same number of
(query, key) pairs to compute; blocks that are masked out whole are never computed. Everything outside of attention
works on single tokens and needs just their global positions, `local_positions`.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch.distributed as dist
from torch import Tensor, nn

from titan.models.layers.attention import Attend, AttendImpl
from titan.parallelisms.context import allgather, ring
from titan.parallelisms.context.operators import BlockAttention, block_attention_operator
from titan.parallelisms.context.order import LoadBalancer, check_halves, local_positions, shard_sequence
from titan.parallelisms.context.ulysses import attend_heads

__all__ = ["Method", "apply_context_parallel", "attend_impl", "local_positions", "shard_sequence"]

Method = Literal["allgather", "alltoall", "ulysses"]

_allgather = block_attention_operator("allgather_attention", allgather.forward, allgather.backward)
_ring = block_attention_operator("ring_attention", ring.forward, ring.backward)


def attend_impl(method: Method, group: dist.ProcessGroup, load_balancer: LoadBalancer) -> AttendImpl:
    """What `Attend.impl` becomes: `(q, k, v) -> out` on this rank's part of the sequence.

    q `(batch, heads, seq / cp, head_dim)`, k and v `(batch, kv_heads, seq / cp, head_dim)`, tokens in the order of
    `local_positions`; every rank of the group must call it, forward and backward. A function of the group's name, not
    of the group, so that `torch.compile` can trace it. Raises ValueError for an unknown method; what it returns raises
    ValueError where heads (ulysses) or an odd local sequence (headtail) cannot be cut.
    """
    headtail = load_balancer == "headtail"
    match method:
        case "allgather":
            return partial(_attend_blocks, operator=_allgather, group=group.group_name, headtail=headtail)
        case "alltoall":
            return partial(_attend_blocks, operator=_ring, group=group.group_name, headtail=headtail)
        case "ulysses":
            return partial(attend_heads, group=group.group_name, cp=group.size(), headtail=headtail)
    raise ValueError(
        f"parallelism.context_parallel_rotate_method = {method!r}: must be allgather, alltoall (ring) or ulysses"
    )


def apply_context_parallel(
    module: nn.Module, *, group: dist.ProcessGroup, method: Method, load_balancer: LoadBalancer
) -> None:
    """Sets `impl` of every `Attend` in a model part, in place. A part without attention is left as it is."""
    impl = attend_impl(method, group, load_balancer)
    for child in module.modules():
        if isinstance(child, Attend):
            child.impl = impl


def _attend_blocks(q: Tensor, k: Tensor, v: Tensor, *, operator: BlockAttention, group: str, headtail: bool) -> Tensor:
    check_halves(q.shape[2], headtail)
    out, _logsumexp = operator(q, k, v, group, headtail)
    return out
