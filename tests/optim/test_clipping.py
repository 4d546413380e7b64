"""Norm and clipping on one process: torch's formula, exact on long tensors, no digit lost to bfloat16."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from titan.optim import clip_, global_norm
from titan.parallelisms.parameters import NamedParameter

pytestmark = pytest.mark.quick
CPU = torch.device("cpu")


def listed(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, scale: float = 1.0) -> list[NamedParameter]:
    torch.manual_seed(0)
    found = []
    for number, shape in enumerate(shapes):
        parameter = nn.Parameter(torch.zeros(shape, dtype=dtype))
        parameter.grad = (scale * torch.randn(shape)).to(dtype)
        found.append(NamedParameter(f"p{number}", parameter))
    return found


def grads(parameters: list[NamedParameter]) -> list[torch.Tensor]:
    return [named.parameter.grad for named in parameters]


@pytest.mark.parametrize("max_norm", [0.5, 1e3])
def test_clipping_is_torchs_clip_grad_norm(max_norm):
    ours, theirs = listed((300, 257), (9,), ()), listed((300, 257), (9,), ())
    norm = global_norm(ours, CPU)
    clip_(ours, norm, max_norm)
    expected = nn.utils.clip_grad_norm_([named.parameter for named in theirs], max_norm)
    torch.testing.assert_close(norm, expected, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(grads(ours), grads(theirs), rtol=1e-6, atol=0.0)


def test_infinity_leaves_gradients_alone():
    parameters = listed((5, 3))
    before = grads(parameters)[0].clone()
    clip_(parameters, global_norm(parameters, CPU), math.inf)
    assert torch.equal(grads(parameters)[0], before)


@pytest.mark.parametrize("max_norm", [0.0, -1.0, math.nan])
def test_a_limit_that_would_spoil_gradients_is_refused(max_norm):
    parameters = listed((5, 3))
    with pytest.raises(ValueError, match=r"training\.max_norm"):
        clip_(parameters, global_norm(parameters, CPU), max_norm)


def test_a_long_tensor_keeps_its_digits():
    # torch's own float32 norm of it is off by 6e-5 on CPU: a sharded run would see another norm.
    parameters = listed((4_000_000,))
    exact = grads(parameters)[0].double().norm()
    assert abs(global_norm(parameters, CPU).item() / exact.item() - 1) < 5e-7


def test_bfloat16_gradients_have_a_float32_norm():
    parameters = listed((64, 64), (33,), dtype=torch.bfloat16)
    exact = sum(grad.double().square().sum() for grad in grads(parameters)).sqrt()
    norm = global_norm(parameters, CPU)
    assert norm.dtype == torch.float32
    assert abs(norm.item() / exact.item() - 1) < 1e-6
    clip_(parameters, norm, 1.0)
    assert grads(parameters)[0].dtype == torch.bfloat16


def test_parameters_without_gradient_and_uncounted_copies_are_not_in_the_norm():
    (one, two) = listed((4, 4), (4, 4))
    frozen = NamedParameter("frozen", nn.Parameter(torch.zeros(3)))
    copy = NamedParameter(one.fqn, two.parameter, counted=False)
    norm = global_norm([one, frozen, copy], CPU)
    torch.testing.assert_close(norm, one.parameter.grad.norm(), rtol=1e-6, atol=0.0)
    before = two.parameter.grad.clone()
    clip_([one, frozen, copy], norm, 0.1)
    torch.testing.assert_close(two.parameter.grad, before * (0.1 / (norm + 1e-6)), rtol=1e-6, atol=0.0)


def test_no_gradients_at_all_is_norm_zero():
    norm = global_norm([], CPU)
    assert norm.item() == 0.0
    assert norm.shape == ()
    clip_([], norm, 1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_gradient_shows_in_the_norm(bad):
    parameters = listed((4, 4), (70_000,))
    grads(parameters)[1][69_999] = bad
    assert not math.isfinite(global_norm(parameters, CPU).item())
