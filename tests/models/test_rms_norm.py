"""RMSNorm on CPU: the written-out backward is that of the formula."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from titan.models.layers.rms_norm import RMSNorm

EPS = 1e-5


def off(a: Tensor, b: Tensor) -> float:
    ratio: float = ((a.double() - b.double()).norm() / b.double().norm()).item()
    return ratio


@pytest.mark.quick
@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 4e-3)], ids=str
)
def test_norm_and_gradients_are_those_of_the_formula(dtype: torch.dtype, most: float) -> None:
    generator = torch.Generator().manual_seed(0)
    norm = RMSNorm(48, EPS).to(dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.rand(48, generator=generator) + 0.5)
    x = torch.randn(3, 7, 48, generator=generator).to(dtype).requires_grad_()
    grad = torch.randn(3, 7, 48, generator=generator).to(dtype)
    exact, weight = (tensor.detach().double().requires_grad_() for tensor in (x, norm.weight))
    out, expected = norm(x), F.rms_norm(exact, (48,), weight, EPS)
    assert out.dtype == dtype
    assert off(out, expected) < most
    mine = torch.autograd.grad(out, (x, norm.weight), grad)
    for found, right in zip(mine, torch.autograd.grad(expected, (exact, weight), grad.double()), strict=True):
        assert found.dtype == dtype
        assert off(found, right) < most


@pytest.mark.quick
def test_a_row_of_zeros_has_finite_gradients() -> None:
    norm, x = RMSNorm(8, EPS), torch.zeros(2, 8, requires_grad=True)
    norm(x).sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, torch.full((2, 8), EPS**-0.5))


@pytest.mark.quick
def test_without_gradients_for_its_input_the_weight_still_gets_one() -> None:
    norm = RMSNorm(8, EPS)
    norm(torch.ones(2, 8)).sum().backward()
    assert norm.weight.grad is not None
    assert torch.allclose(norm.weight.grad, torch.full((8,), 2.0), atol=1e-4)
