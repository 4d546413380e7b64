"""Who holds which tokens, and which blocks of (queries, keys) each rank computes: pure functions, no communication.

The sequence is cut into chunks: cp of them in order, or with head-tail balancing 2cp, of which rank r holds r and
2cp-1-r. A causal mask makes chunk i see the chunks before it in full and itself as a triangle, and nothing else is
computed. Under head-tail each rank so computes 2cp-1 full chunks and 2 triangles, whatever its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

LoadBalancer = Literal["headtail"] | None


@dataclass(frozen=True)
class Block:
    """A rectangle of attention: rows of local queries against rows of keys; causal ones are squares."""

    queries: slice
    keys: slice
    causal: bool


def local_chunks(cp: int, rank: int, load_balancer: LoadBalancer) -> tuple[int, ...]:
    """Numbers of the chunks that a rank holds, in the order in which it holds them."""
    return (rank, 2 * cp - 1 - rank) if load_balancer == "headtail" else (rank,)


def local_positions(seq_len: int, cp: int, rank: int, load_balancer: LoadBalancer) -> Tensor:
    """Global positions of a rank's tokens, `(seq_len / cp,)` int64 on CPU.

    Raises ValueError where the sequence does not divide into the chunks.
    """
    size = _chunk_size(seq_len, cp, load_balancer)
    chunks = local_chunks(cp, rank, load_balancer)
    return torch.cat([torch.arange(i * size, (i + 1) * size, device="cpu") for i in chunks])


def shard_sequence(tensor: Tensor, dim: int, cp: int, rank: int, load_balancer: LoadBalancer) -> Tensor:
    """The rank's part of a tensor that has the whole sequence on `dim`, in the order of `local_positions`; a view where
    it is one run. Raises ValueError where the sequence does not divide into the chunks."""
    size = _chunk_size(tensor.shape[dim], cp, load_balancer)
    parts = [tensor.narrow(dim, i * size, size) for i in local_chunks(cp, rank, load_balancer)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def check_halves(local: int, headtail: bool) -> None:
    """Raises ValueError where a rank's tokens cannot be a head and a tail of equal length."""
    if headtail and local % 2:
        raise ValueError(f"headtail load balancing needs an even number of tokens a rank, not {local}")


def to_natural(x: Tensor, cp: int, *, headtail: bool) -> Tensor:
    """Tokens of all ranks, one rank after the other along dim 0, put into the order of the sequence."""
    if not headtail:
        return x
    held, parts = _rank_order(cp), x.chunk(2 * cp)
    return torch.cat([parts[held.index(chunk)] for chunk in range(2 * cp)])


def to_ranks(x: Tensor, cp: int, *, headtail: bool) -> Tensor:
    """The inverse of `to_natural`."""
    if not headtail:
        return x
    parts = x.chunk(2 * cp)
    return torch.cat([parts[chunk] for chunk in _rank_order(cp)])


def prefix_blocks(cp: int, rank: int, local: int, *, headtail: bool) -> list[Block]:
    """What a rank of `local` queries computes against the keys of the whole sequence in natural order."""
    chunks = local_chunks(cp, rank, "headtail" if headtail else None)
    size = local // len(chunks)
    blocks = []
    for place, chunk in enumerate(chunks):
        queries = slice(place * size, (place + 1) * size)
        if chunk > 0:
            blocks.append(Block(queries, slice(0, chunk * size), causal=False))
        blocks.append(Block(queries, slice(chunk * size, (chunk + 1) * size), causal=True))
    return blocks


def peer_block(rank: int, peer: int, local: int, *, headtail: bool) -> Block | None:
    """What a rank computes against the keys that `peer` holds, all in one block; None where it sees none of them.

    Under head-tail: its own keys are in ascending order, so they are one triangle. Of a peer before it, both its chunks
    see the head and neither sees the tail; of a peer behind it, only its tail chunk sees anything, and that is both.
    """
    everything, half = slice(0, local), local // 2
    if peer == rank:
        return Block(everything, everything, causal=True)
    if not headtail:
        return Block(everything, everything, causal=False) if peer < rank else None
    if peer < rank:
        return Block(everything, slice(0, half), causal=False)
    return Block(slice(half, local), everything, causal=False)


def _rank_order(cp: int) -> list[int]:
    """Numbers of the head-tail chunks as the ranks hold them, one rank after the other."""
    return [chunk for rank in range(cp) for chunk in local_chunks(cp, rank, "headtail")]


def _chunk_size(seq_len: int, cp: int, load_balancer: LoadBalancer) -> int:
    chunks = cp * len(local_chunks(cp, 0, load_balancer))
    if seq_len % chunks:
        rule = f"context_parallel_degree{' x 2 (headtail)' if load_balancer else ''} = {chunks}"
        nearest = max(chunks, round(seq_len / chunks) * chunks)
        raise ValueError(f"a sequence of {seq_len} tokens must divide by {rule}; {nearest} is the nearest")
    return seq_len // chunks
