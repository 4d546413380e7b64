"""The all-gather method: every rank gets K and V of the whole sequence, and keeps its own queries.

One collective forward. Backward gathers again rather than keep cp times the K/V alive in between, and reduce-scatters
the sums of dK and dV to their owners, in float32 also for bf16. Each chunk of queries runs two kernels: the prefix
before it in full and its own triangle. Buffers are (seq, 2, batch, kv_heads, head_dim): the rank order of the
collective is then the order of the sequence, and without head-tail no copy follows.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from titan.parallelisms.context.order import prefix_blocks, to_natural, to_ranks
from titan.parallelisms.context.sums import PartialAttention, PartialGradients, finished, wide


def forward(q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup, headtail: bool) -> tuple[Tensor, Tensor]:
    """Local q, k, v `(batch, heads, local, head_dim)` to local out and logsumexp."""
    keys, values = _heads_first(_gathered(k, v, group, headtail))
    attention = PartialAttention(q)
    for block in prefix_blocks(group.size(), group.rank(), q.shape[2], headtail=headtail):
        attention.add(block, keys, values)
    return attention.result()


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    group: dist.ProcessGroup,
    headtail: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Local dq, dk, dv; dk and dv summed over the queries of all ranks."""
    dq, summed = _by_local_queries(grad_out, q, k, v, out, logsumexp, group, headtail)
    by_rank = to_ranks(summed, group.size(), headtail=headtail)
    own = by_rank.new_empty(k.shape[2], *by_rank.shape[1:])
    dist.reduce_scatter_single(own, by_rank, group=group)
    dk, dv = _heads_first(own)
    return dq, finished(dk, k.dtype), finished(dv, v.dtype)


def _by_local_queries(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    group: dist.ProcessGroup,
    headtail: bool,
) -> tuple[Tensor, Tensor]:
    """dq, and what the local queries add to dK and dV of the whole sequence, `(seq, 2, batch, kv_heads, head_dim)`. Of
    its own so that the gathered K/V is gone when the sums are put in order and sent."""
    gathered = _gathered(k, v, group, headtail)
    keys, values = _heads_first(gathered)
    summed = torch.zeros_like(gathered, dtype=wide(k.dtype))
    dk, dv = _heads_first(summed)
    gradients = PartialGradients(grad_out, q, out, logsumexp)
    for block in prefix_blocks(group.size(), group.rank(), q.shape[2], headtail=headtail):
        gradients.add(block, keys, values, dk, dv)
    return gradients.result(), summed


def _gathered(k: Tensor, v: Tensor, group: dist.ProcessGroup, headtail: bool) -> Tensor:
    """K and V of all ranks in the order of the sequence, `(seq, 2, batch, kv_heads, head_dim)`."""
    local = torch.stack([x.permute(2, 0, 1, 3) for x in (k, v)], dim=1).contiguous()
    gathered = local.new_empty(group.size() * local.shape[0], *local.shape[1:])
    dist.all_gather_single(gathered, local, group=group)
    return to_natural(gathered, group.size(), headtail=headtail)


def _heads_first(x: Tensor) -> tuple[Tensor, Tensor]:
    """Views `(batch, kv_heads, seq, head_dim)` of the two halves."""
    return x[:, 0].permute(1, 2, 0, 3), x[:, 1].permute(1, 2, 0, 3)
