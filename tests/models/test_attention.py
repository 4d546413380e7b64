"""Attention on one device: the core against the formula, its blocks against the whole, the kernels against each other.

The CUDA kernels cannot run here; their calls are checked against torch's own shape functions on the meta device, which
hold arguments, grouped heads and the padded logsumexp to the real operators' schema.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from titan.models.layers.attention import Attend
from titan.models.layers.block_attention import Kernel, attend_block, attend_block_backward, choose_kernel, merge_

pytestmark = pytest.mark.quick

HEADS = [(4, 4), (4, 2), (2, 1)]


def draw(heads: int, kv_heads: int, seq: int = 48, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(heads * 100 + kv_heads)
    shapes = [(2, heads, seq, 16), (2, kv_heads, seq, 16), (2, kv_heads, seq, 16), (2, heads, seq, 16)]
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)


def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention written out, one KV head a query head."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    mask = torch.tril(torch.ones(scores.shape[-2:], dtype=torch.bool))
    return torch.where(mask, scores, -math.inf).softmax(-1) @ v


def off(a: Tensor, b: Tensor) -> float:
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_attend_is_causal_softmax_attention(heads: int, kv_heads: int) -> None:
    q, k, v, _ = draw(heads, kv_heads)
    assert off(Attend()(q, k, v), formula(q.double(), k.double(), v.double())) < 1e-6


def test_attend_hands_over_to_its_implementation() -> None:
    attend = Attend()
    attend.impl = lambda q, k, v: q + k + v
    q = torch.ones(1, 1, 2, 3)
    assert torch.equal(attend(q, q, q), q * 3)
    assert not list(attend.parameters())
    assert not attend.state_dict()


@pytest.mark.parametrize("kernel", ["cpu_flash", "math"])
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_blocks_add_up_to_full_attention(heads: int, kv_heads: int, kernel: Kernel) -> None:
    q, k, v, grad = draw(heads, kv_heads)
    full = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = F.scaled_dot_product_attention(*full, is_causal=True, enable_gqa=heads != kv_heads)
    expected.backward(grad)

    half = 24  # the second half of the queries sees the first half of the keys in full, and its own as a triangle
    queries, upstream = q[:, :, half:], grad[:, :, half:]
    blocks = [(slice(0, half), False), (slice(half, None), True)]
    out, logsumexp = torch.zeros(2, heads, half, 16), torch.full((2, heads, half), -math.inf)
    for keys, causal in blocks:
        merge_(out, logsumexp, *attend_block(queries, k[:, :, keys], v[:, :, keys], causal, kernel))
    assert off(out, expected[:, :, half:]) < 1e-6

    dq, dk, dv = torch.zeros_like(queries), torch.zeros_like(k), torch.zeros_like(v)
    for keys, causal in blocks:
        args = (upstream, queries, k[:, :, keys], v[:, :, keys], out, logsumexp, causal, kernel)
        by_q, dk[:, :, keys], dv[:, :, keys] = attend_block_backward(*args)
        dq += by_q
    first = (grad[:, :, :half], q[:, :, :half], k[:, :, :half], v[:, :, :half])  # and the first half, its own triangle
    own = attend_block(*first[1:], True, kernel)
    _, by_k, by_v = attend_block_backward(*first, *own, True, kernel)
    dk[:, :, :half] += by_k
    dv[:, :, :half] += by_v
    for mine, whole in zip((dq, dk, dv), (full[0].grad[:, :, half:], full[1].grad, full[2].grad), strict=True):
        assert off(mine, whole) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("causal", [True, False])
def test_plain_torch_agrees_with_the_flash_kernel(dtype: torch.dtype, causal: bool) -> None:
    q, k, v, grad = draw(4, 2, dtype=dtype)
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float64: 1e-14}[dtype]
    results = []
    for kernel in ("cpu_flash", "math"):
        out, logsumexp = attend_block(q, k, v, causal, kernel)
        results.append((out, logsumexp, *attend_block_backward(grad, q, k, v, out, logsumexp, causal, kernel)))
    for flash, plain in zip(*results, strict=True):
        assert plain.dtype == flash.dtype
        assert off(plain, flash) < tolerance


def test_merging_rows_that_saw_no_key() -> None:
    q, k, v, _ = draw(2, 2)
    out, logsumexp = attend_block(q, k, v, True)
    nothing, never = torch.zeros_like(out), torch.full_like(logsumexp, -math.inf)
    merged, total = nothing.clone(), never.clone()
    merge_(merged, total, nothing, never)
    assert torch.equal(merged, nothing)
    assert torch.equal(total, never)
    merge_(merged, total, out, logsumexp)
    assert torch.equal(merged, out)
    assert torch.equal(total, logsumexp)
    merge_(merged, total, nothing, never)
    assert torch.equal(merged, out)
    assert torch.equal(total, logsumexp)


def test_impossible_blocks_are_refused() -> None:
    q, k, v, _ = draw(4, 2)
    with pytest.raises(ValueError, match="square: 48 queries, 24 keys"):
        attend_block(q, k[:, :, :24], v[:, :, :24], True)
    with pytest.raises(ValueError, match="3 query heads do not group over 2"):
        attend_block(q[:, :3], k, v, False)


@pytest.mark.parametrize(
    ("device_type", "dtype", "head_dim", "kernel"),
    [
        ("cpu", torch.float64, 7, "cpu_flash"),
        ("cuda", torch.bfloat16, 128, "cuda_flash"),
        ("cuda", torch.float32, 64, "cuda_efficient" if torch.version.hip is None else "math"),
        ("cuda", torch.bfloat16, 20, "math"),
        ("cuda", torch.float64, 64, "math"),
        ("xpu", torch.bfloat16, 64, "math"),
    ],
)
def test_kernel_choice(device_type: str, dtype: torch.dtype, head_dim: int, kernel: Kernel) -> None:
    assert choose_kernel(device_type, dtype, head_dim) == kernel


@pytest.mark.parametrize(("kernel", "dtype"), [("cuda_flash", torch.bfloat16), ("cuda_efficient", torch.float32)])
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("seq", [48, 64])
def test_cuda_kernels_are_called_as_torch_declares_them(
    kernel: Kernel, dtype: torch.dtype, heads: int, kv_heads: int, seq: int
) -> None:
    q, k, v, grad = (x.to("meta") for x in draw(heads, kv_heads, seq, dtype))
    out, logsumexp = attend_block(q, k, v, True, kernel)
    assert (out.shape, out.dtype) == (q.shape, dtype)
    assert (logsumexp.shape, logsumexp.dtype) == (q.shape[:-1], torch.float32)
    gradients = attend_block_backward(grad, q, k, v, out, logsumexp, True, kernel)
    assert [x.shape for x in gradients] == [q.shape, k.shape, v.shape]
    assert {x.dtype for x in gradients} == {dtype}
