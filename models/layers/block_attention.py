"""Attention of one block of queries over one block of keys, in a form that composes: context parallelism is built on
it.

`attend_block` also returns the logsumexp of the scores, by which outputs over several K/V blocks merge exactly
(`merge_`). `attend_block_backward` takes the *global* output and logsumexp, those of the merged result; the gradients
of the blocks then just add up to those of full attention (FlashAttention-2, arXiv:2307.08691, section 3.1; Ring
Attention, arXiv:2310.01889). Measured on CPU: within 5e-7 of SDPA in fp32, forward and gradients.

The kernels are torch's own: flash on CPU, in float32 also for bfloat16 (see `cpu_attention`); on CUDA flash for fp16
and bf16, memory-efficient for fp32; plain torch wherever there is none of them (XPU, MPS, odd head sizes, float64 on
CUDA).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Kernel = Literal["cpu_flash", "cuda_flash", "cuda_efficient", "math"]
Gradients = tuple[Tensor, Tensor, Tensor]

_aten = torch.ops.aten
_EFFICIENT_ROWS = 32  # the efficient kernels store the logsumexp in rows padded to a multiple of this (kAlignLSE)


def choose_kernel(device_type: str, dtype: torch.dtype, head_dim: int) -> Kernel:
    """The fastest kernel that takes such queries."""
    if device_type == "cpu":
        return "cpu_flash"
    if device_type == "cuda" and head_dim % 8 == 0:  # SDPA pads odd heads before the fused kernels, we do not
        if dtype in (torch.float16, torch.bfloat16) and head_dim <= 256:
            return "cuda_flash"
        # ROCm's version lays the logsumexp out differently.
        if dtype == torch.float32 and torch.version.hip is None:
            return "cuda_efficient"
    return "math"


def attend_block(q: Tensor, k: Tensor, v: Tensor, causal: bool, kernel: Kernel | None = None) -> tuple[Tensor, Tensor]:
    """Attention of a block of queries over a block of keys and values.

    Args:
        q: `(batch, heads, queries, head_dim)`.
        k, v: `(batch, kv_heads, keys, head_dim)`, heads a multiple of kv_heads.
        causal: query i sees keys 0..i of this block; needs as many queries as keys. Else every query sees every key.
        kernel: for tests; chosen by device and dtype where not given.

    Returns:
        out, shape and dtype of q; logsumexp of the scaled scores, `(batch, heads, queries)` float32 (float64 for
        float64).

    Raises:
        ValueError: a causal block that is not square, or heads that do not group.
    """
    _check(q, k, causal)
    match kernel or choose_kernel(q.device.type, q.dtype, q.shape[-1]):
        case "cpu_flash":
            flash = _aten._scaled_dot_product_flash_attention_for_cpu
            out, logsumexp = flash(_wide(q), _wide(k), _wide(v), 0.0, causal)
            out = out.to(q.dtype)
        case "cuda_flash":
            out, logsumexp, *_ = _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False)
        case "cuda_efficient":
            k, v = _repeated(k, q), _repeated(v, q)
            out, padded, *_ = _aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)
            logsumexp = padded[:, :, : q.shape[2]]
        case "math":
            out, logsumexp = _math(q, k, v, causal)
    return out, logsumexp


def attend_block_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    causal: bool,
    kernel: Kernel | None = None,
) -> Gradients:
    """Gradients of one block. `out` and `logsumexp` are those over *all* keys that these queries see, not of this
    block.

    Returns dq, dk, dv in the shapes and dtypes of q, k, v: this block's share of dq, and what these queries add to dk
    and dv.
    """
    _check(q, k, causal)
    match kernel or choose_kernel(q.device.type, q.dtype, q.shape[-1]):
        case "cpu_flash":
            backward = _aten._scaled_dot_product_flash_attention_for_cpu_backward
            dq, dk, dv = backward(*map(_wide, (grad_out, q, k, v, out)), logsumexp, 0.0, causal)
            gradients: Gradients = dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
        case "cuda_flash":
            gradients = _cuda_flash_backward(grad_out, q, k, v, out, logsumexp, causal)
        case "cuda_efficient":
            gradients = _cuda_efficient_backward(grad_out, q, k, v, out, logsumexp, causal)
        case "math":
            gradients = _math_backward(grad_out, q, k, v, out, logsumexp, causal)
    return gradients


def merge_(out: Tensor, logsumexp: Tensor, part: Tensor, part_logsumexp: Tensor) -> None:
    """Merges attention over further keys into `out` and `logsumexp`, both in place.

    out, part: `(batch, heads, queries, head_dim)`, `out` in float32 or wider; logsumexps `(batch, heads, queries)`. A
    row that saw no key has logsumexp -inf and weighs nothing, on either side or both. (The CPU flash kernel writes 0
    there, torch 2.13; blocks of full and causal square masks have no such row.)
    """
    merged = torch.logaddexp(logsumexp, part_logsumexp)
    base = merged.masked_fill(merged == -math.inf, 0.0)  # -inf minus -inf would be NaN
    out.mul_((logsumexp - base).exp().unsqueeze(-1))
    out.addcmul_(part.to(out.dtype), (part_logsumexp - base).exp().unsqueeze(-1))
    logsumexp.copy_(merged)


def empty_sequence_major(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for `(batch, heads, seq, head_dim)` ordered (batch, seq, heads, head_dim): what the kernels return, what
    the CUDA efficient backward requires of `out`, and what the projections before and after read without a copy."""
    batch, heads, seq, head_dim = shape
    return torch.empty(batch, seq, heads, head_dim, dtype=dtype, device=device).transpose(1, 2)


def _check(q: Tensor, k: Tensor, causal: bool) -> None:
    if causal and q.shape[2] != k.shape[2]:
        raise ValueError(f"a causal block must be square: {q.shape[2]} queries, {k.shape[2]} keys")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.shape[1]} query heads do not group over {k.shape[1]} KV heads")


def _cuda_flash_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, causal: bool
) -> Gradients:
    # Without dropout the random state is not read, but the schema wants tensors. cum_seq is for ragged batches only.
    seed = torch.empty(2, dtype=torch.uint64, device=q.device)
    offset = torch.empty((), dtype=torch.uint64, device=q.device)
    lengths = (None, None, q.shape[2], k.shape[2])
    lse = logsumexp.contiguous()  # the kernel takes no strides for it
    backward = _aten._scaled_dot_product_flash_attention_backward
    gradients: Gradients = backward(grad_out, q, k, v, out, lse, *lengths, 0.0, causal, seed, offset)
    return gradients


def _cuda_efficient_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, causal: bool
) -> Gradients:
    padding = -q.shape[2] % _EFFICIENT_ROWS
    lse = F.pad(logsumexp, (0, padding), value=math.inf).contiguous()  # exp(score - inf) = 0: such rows add nothing
    out = out.transpose(1, 2).contiguous().transpose(1, 2)  # read with the strides of (batch, seq, heads, head_dim)
    random_state = [torch.empty((), dtype=torch.int64, device=q.device) for _ in range(2)]  # not read without dropout
    wanted = [True, True, True, False]
    many_k, many_v = _repeated(k, q), _repeated(v, q)
    backward = _aten._scaled_dot_product_efficient_attention_backward
    dq, dk, dv, _ = backward(grad_out, q, many_k, many_v, None, out, lse, *random_state, 0.0, wanted, causal)
    return dq, _summed(dk, k), _summed(dv, v)


def _repeated(x: Tensor, q: Tensor) -> Tensor:
    """One KV head a query head, for kernels without grouped heads."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def _summed(gradient: Tensor, x: Tensor) -> Tensor:
    return gradient if gradient.shape[1] == x.shape[1] else _groups(gradient, x.shape[1]).sum(2)


def _scores(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """Scaled scores `(batch, kv_heads, group, queries, keys)` in float32 or wider, -inf where masked."""
    scores: Tensor = q @ k.transpose(-1, -2).unsqueeze(2) / math.sqrt(q.shape[-1])
    if causal:
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(ones.triu(1), -math.inf)
    return scores


def _grouped(x: Tensor, kv_heads: int) -> Tensor:
    """`(batch, heads, ...)` to `(batch, kv_heads, group, ...)`, in float32 or wider."""
    return _groups(_wide(x), kv_heads)


def _groups(x: Tensor, kv_heads: int) -> Tensor:
    return x.reshape(x.shape[0], kv_heads, -1, *x.shape[2:])


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _math(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    scores = _scores(_grouped(q, k.shape[1]), _wide(k), causal)
    logsumexp = scores.logsumexp(-1)
    out = (scores - logsumexp.unsqueeze(-1)).exp() @ _wide(v).unsqueeze(2)
    return out.flatten(1, 2).to(q.dtype), logsumexp.flatten(1, 2)


def _math_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, causal: bool
) -> Gradients:
    kv_heads = k.shape[1]
    queries, upstream, output = (_grouped(x, kv_heads) for x in (q, grad_out, out))
    keys, values = _wide(k), _wide(v)
    p = (_scores(queries, keys, causal) - _grouped(logsumexp, kv_heads).unsqueeze(-1)).exp()
    delta = (upstream * output).sum(-1, keepdim=True)  # sum over all keys of p dp, which is why `out` is the global one
    dp = upstream @ values.transpose(-1, -2).unsqueeze(2)
    ds = p * (dp - delta) / math.sqrt(q.shape[-1])
    dq = ds @ keys.unsqueeze(2)
    dk = (ds.transpose(-1, -2) @ queries).sum(2)
    dv = (p.transpose(-1, -2) @ upstream).sum(2)
    return dq.flatten(1, 2).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
