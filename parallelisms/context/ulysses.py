"""Ulysses: an all-to-all gives each rank the whole sequence for a share of the heads, and another takes the output
back.

In between it is plain causal attention of one device in the order of the sequence (DeepSpeed Ulysses,
arXiv:2309.14509). Q, K and V travel in one collective. With fewer KV heads than ranks, each is repeated just often
enough to divide by cp, for the exchange only: autograd sums their gradients. Only the exchange is an operator of ours
(its backward is itself), so what is kept for backward is what SDPA keeps, and nothing is sent twice.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from titan.parallelisms.context.operators import all_to_all
from titan.parallelisms.context.order import check_halves, to_natural, to_ranks


def attend_heads(q: Tensor, k: Tensor, v: Tensor, *, group: str, cp: int, headtail: bool) -> Tensor:
    """Local q, k, v `(batch, heads, local, head_dim)` to local out.

    Raises ValueError where the heads do not divide by cp, or an odd local sequence is said to be head and tail.
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    if heads % cp:
        raise ValueError(
            'parallelism.context_parallel_rotate_method = "ulysses": needs heads / tensor_parallel_degree to divide by '
            f"context_parallel_degree ({heads} by {cp}): use allgather or alltoall, or other degrees"
        )
    check_halves(q.shape[2], headtail)
    copies = math.lcm(kv_heads, cp) // kv_heads  # still divides the group: heads are a multiple of both
    if copies > 1:
        k, v = (x.repeat_interleave(copies, dim=1) for x in (k, v))
    # (cp, local, batch, (heads + 2 kv_heads) / cp, head_dim), one slice a rank
    packed = torch.cat([_share_heads(x, cp) for x in (q, k, v)], dim=3).contiguous()
    received = to_natural(all_to_all(packed, group).flatten(0, 1), cp, headtail=headtail)
    widths = [x.shape[1] // cp for x in (q, k, v)]
    queries, keys, values = torch.split(
        received.permute(1, 2, 0, 3), widths, dim=1
    )  # (batch, heads / cp, seq, head_dim)
    out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=widths[0] != widths[1])
    by_rank = to_ranks(out.permute(2, 0, 1, 3), cp, headtail=headtail)  # (seq, batch, heads / cp, head_dim)
    returned: Tensor = all_to_all(by_rank.reshape(cp, -1, *by_rank.shape[1:]).contiguous(), group)
    # (cp, local, batch, heads / cp, head_dim) to (batch, local, heads, head_dim): what the output projection reads
    return returned.permute(2, 1, 0, 3, 4).flatten(2, 3).transpose(1, 2)


def _share_heads(x: Tensor, cp: int) -> Tensor:
    """`(batch, heads, local, head_dim)` to `(cp, local, batch, heads / cp, head_dim)`."""
    batch, heads, local, head_dim = x.shape
    return x.reshape(batch, cp, heads // cp, local, head_dim).permute(1, 3, 0, 2, 4)
