"""Causal attention on CPU, cut along its diagonal: what a short sequence masks is not computed.

torch's CPU kernel (2.13) reads keys 512 at a time and skips only whole runs of them, so that up to 512 positions it
computes the masked half too. Here the sequence is halved: both halves are causal problems of their own and go to the
kernel as one batch, the second half's queries see the first half's keys without a mask, and the two parts merge by
logsumexp (`block_attention`). Halves go on being halved down to `BLOCK`. Two rows of 512, 16 heads of 16, forward and
backward on one core: 30 ms instead of 41.

Attention is computed in float32 under bfloat16 too, which is more exact and, at those shapes, 31 ms instead of 54: the
kernel's bfloat16 products of short heads and blocks are slow. (At 2048 positions and heads of 64, 127 instead of 116.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from titan.models.layers.block_attention import attend_block, attend_block_backward, empty_sequence_major, merge_

BLOCK = 256
"""No part is shorter. Measured at heads of 16 to 128: parts of 128 gain nothing more."""


def cpu_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As `Attend.forward`; whole sequences in one call where halves would be shorter than `BLOCK`, or uneven."""
    if _halves(q):
        out: Tensor = _operator(q, k, v)[0]
        return out
    wide = torch.promote_types(q.dtype, torch.float32)
    q_wide, k_wide, v_wide = (x.to(wide) for x in (q, k, v))
    return F.scaled_dot_product_attention(
        q_wide, k_wide, v_wide, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
    ).to(q.dtype)


def _halves(q: Tensor) -> bool:
    return q.shape[2] % 2 == 0 and q.shape[2] // 2 >= BLOCK


@torch.library.custom_op(
    "titan::cpu_attention", mutates_args=(), schema="(Tensor q, Tensor k, Tensor v) -> (Tensor, Tensor)"
)
def _operator(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    out, logsumexp = _forward(*_widened(q, k, v))
    return out.to(q.dtype), logsumexp.contiguous()


@torch.library.custom_op(
    "titan::cpu_attention_backward",
    mutates_args=(),
    schema="(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor logsumexp) -> (Tensor, Tensor, Tensor)",
)
def _gradient(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = _backward(*_widened(grad_out, q, k, v, out), logsumexp=logsumexp)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


@_operator.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32))


@_gradient.register_fake
def _(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_like(q), _empty_like(k), _empty_like(v)


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad_out: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor, Tensor] = _gradient(grad_out, *ctx.saved_tensors)
    return gradients


_operator.register_autograd(_differentiate, setup_context=_remember)


def _forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Out in the memory order of `empty_sequence_major`, logsumexp `(batch, heads, seq)` contiguous."""
    if not _halves(q):
        return attend_block(q, k, v, True, "cpu_flash")
    batch, middle = q.shape[0], q.shape[2] // 2
    out, logsumexp = _forward(_fold(q), _fold(k), _fold(v))
    out = _unfold(out, batch)
    logsumexp = logsumexp.view(batch, 2, -1, middle).transpose(1, 2).reshape(batch, -1, 2 * middle)
    part, part_logsumexp = attend_block(q[:, :, middle:], k[:, :, :middle], v[:, :, :middle], False, "cpu_flash")
    merge_(out[:, :, middle:], logsumexp[:, :, middle:], part, part_logsumexp)
    return out, logsumexp


def _backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, *, logsumexp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    if not _halves(q):
        return attend_block_backward(grad_out, q, k, v, out, logsumexp.contiguous(), True, "cpu_flash")
    batch, middle = q.shape[0], q.shape[2] // 2
    diagonal = logsumexp.view(batch, -1, 2, middle).transpose(1, 2).reshape(2 * batch, -1, middle)
    dq, dk, dv = (_unfold(x, batch) for x in _backward(*map(_fold, (grad_out, q, k, v, out)), logsumexp=diagonal))
    late, early = (slice(None), slice(None), slice(middle, None)), (slice(None), slice(None), slice(None, middle))
    part_q, part_k, part_v = attend_block_backward(
        grad_out[late], q[late], k[early], v[early], out[late], logsumexp[late].contiguous(), False, "cpu_flash"
    )
    dq[late].add_(part_q)
    dk[early].add_(part_k)
    dv[early].add_(part_v)
    return dq, dk, dv


def _fold(x: Tensor) -> Tensor:
    """`(batch, heads, seq, head_dim)` to `(2 batch, heads, seq / 2, head_dim)`: no copy in sequence-major memory."""
    batch, heads, seq, head_dim = x.shape
    return x.transpose(1, 2).reshape(2 * batch, seq // 2, heads, head_dim).transpose(1, 2)


def _unfold(x: Tensor, batch: int) -> Tensor:
    _, heads, half, head_dim = x.shape
    return x.transpose(1, 2).reshape(batch, 2 * half, heads, head_dim).transpose(1, 2)


def _widened(*tensors: Tensor) -> list[Tensor]:
    return [x.to(torch.promote_types(x.dtype, torch.float32)) for x in tensors]


def _empty_like(x: Tensor) -> Tensor:
    return empty_sequence_major(tuple(x.shape), dtype=x.dtype, device=x.device)
