"""Attention on CPU: sequences that are cut give what the whole kernel gives, forward and gradients."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from titan.models.layers.attention import Attend

SHAPES = [(512, 4, 4, 16), (514, 2, 1, 8), (1024, 4, 2, 16), (513, 2, 2, 8), (96, 2, 1, 8)]
"""seq, heads, kv_heads, head_dim: halved once, twice, not at all."""


def gradients(out: Tensor, inputs: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    return out, *torch.autograd.grad(out, inputs, grad)


def off(a: Tensor, b: Tensor) -> float:
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def draw(seq: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v and the gradient of the output, in the memory order that projections leave."""
    generator = torch.Generator().manual_seed(seq)
    shapes = [(2, seq, count, head_dim) for count in (heads, kv_heads, kv_heads, heads)]
    return [
        torch.randn(shape, generator=generator).to(dtype).transpose(1, 2).requires_grad_(index < 3)
        for index, shape in enumerate(shapes)
    ]


@pytest.mark.quick
@pytest.mark.parametrize(("seq", "heads", "kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
def test_cut_attention_is_causal_attention(
    seq: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, most: float
) -> None:
    q, k, v, grad = draw(seq, heads, kv_heads, head_dim, dtype)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected = F.scaled_dot_product_attention(
        exact[0], exact[1], exact[2], is_causal=True, enable_gqa=heads != kv_heads
    )
    found = gradients(Attend()(q, k, v), (q, k, v), grad)
    for mine, right in zip(found, gradients(expected, exact, grad.double()), strict=True):
        assert mine.dtype == dtype
        assert off(mine, right) < most


@pytest.mark.quick
def test_cut_attention_takes_any_memory_order() -> None:
    q, k, v, grad = draw(512, 2, 2, 8, torch.float32)
    dense = tuple(x.detach().contiguous().requires_grad_() for x in (q, k, v))
    found = gradients(Attend()(*dense), dense, grad.contiguous())
    for mine, right in zip(found, gradients(Attend()(q, k, v), (q, k, v), grad), strict=True):
        assert off(mine, right) < 1e-6


@pytest.mark.quick
def test_the_operator_keeps_what_compilers_are_told_of_it() -> None:
    q, k, v, _ = draw(512, 2, 1, 8, torch.float32)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.titan.cpu_attention.default, (q, k, v), test_utils=checks)
