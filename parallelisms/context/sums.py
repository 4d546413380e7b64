"""Sums over blocks: attention merged by logsumexp, gradients added. Both accumulate in float32 or wider.

The backward of a block gets the merged output and logsumexp, so that its gradients are shares of the whole; see
`titan.models.layers.block_attention`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from titan.models.layers.block_attention import attend_block, attend_block_backward, empty_sequence_major, merge_
from titan.parallelisms.context.order import Block


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums are kept in: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def finished(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """A sum `(batch, kv_heads, local, head_dim)` in memory of its own, as the operators return it."""
    return empty_sequence_major(gradient.shape, dtype=dtype, device=gradient.device).copy_(gradient)


class PartialAttention:
    """Attention of local queries `(batch, heads, local, head_dim)` over the blocks added so far."""

    def __init__(self, q: Tensor) -> None:
        self._q = q
        self._out = empty_sequence_major(q.shape, dtype=wide(q.dtype), device=q.device).zero_()
        self._logsumexp = q.new_full(q.shape[:-1], -math.inf, dtype=wide(q.dtype))

    def add(self, block: Block, k: Tensor, v: Tensor) -> None:
        """k, v: the keys and values that `block.keys` counts in."""
        rows, keys = block.queries, block.keys
        part = attend_block(self._q[:, :, rows], k[:, :, keys], v[:, :, keys], block.causal)
        merge_(self._out[:, :, rows], self._logsumexp[:, :, rows], *part)

    def result(self) -> tuple[Tensor, Tensor]:
        """out in the dtype of q, memory ordered (batch, seq, heads, head_dim); logsumexp `(batch, heads, local)`."""
        return self._out.to(self._q.dtype), self._logsumexp


class PartialGradients:
    """Gradients by local queries; `dq` is theirs over the blocks added so far."""

    def __init__(self, grad_out: Tensor, q: Tensor, out: Tensor, logsumexp: Tensor) -> None:
        self._grad_out, self._q, self._out, self._logsumexp = grad_out, q, out, logsumexp
        self._dq = empty_sequence_major(q.shape, dtype=wide(q.dtype), device=q.device).zero_()

    def add(self, block: Block, k: Tensor, v: Tensor, dk: Tensor, dv: Tensor) -> None:
        """Adds the gradients of a block, those of its keys and values to `dk` and `dv` in place, in a wide dtype."""
        rows, keys = block.queries, block.keys
        grad_out, q, out, logsumexp = (x[:, :, rows] for x in (self._grad_out, self._q, self._out, self._logsumexp))
        by_q, by_k, by_v = attend_block_backward(
            grad_out, q, k[:, :, keys], v[:, :, keys], out, logsumexp, block.causal
        )
        self._dq[:, :, rows] += by_q
        dk[:, :, keys] += by_k
        dv[:, :, keys] += by_v

    def result(self) -> Tensor:
        """dq in the dtype of q, memory ordered (batch, seq, heads, head_dim)."""
        return self._dq.to(self._q.dtype)
