"""The optimizer: which parameters decay, that it is torch's own arithmetic, and its edges."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from titan.config.schema import Optimizer
from titan.optim import build_optimizer
from titan.parallelisms.parameters import NamedParameter, named_parameters

pytestmark = pytest.mark.quick


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 3))


def listed(module: nn.Module) -> list[NamedParameter]:
    return named_parameters([module], {})


def test_matrices_decay_and_norms_and_biases_do_not():
    module = model()
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    optimizer = build_optimizer(Optimizer(lr=1e-2, weight_decay=50.0), listed(module))
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in module.named_parameters():
        shrunk = before[name] * (0.5 if name in ("0.weight", "2.weight") else 1.0)
        torch.testing.assert_close(parameter.detach(), shrunk, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("implementation", ["for-loop", "foreach", "fused"])
@pytest.mark.parametrize("name", ["AdamW", "Adam"])
def test_steps_are_those_of_torch(name, implementation):
    section = Optimizer(
        name=name, lr=1e-2, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.3, implementation=implementation
    )
    ours, theirs = model(), model()
    optimizer = build_optimizer(section, listed(ours))
    decaying = [parameter for parameter in theirs.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in theirs.parameters() if parameter.ndim < 2]
    reference = getattr(torch.optim, name)(
        [{"params": decaying, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.8, 0.9),
        eps=1e-6,
        foreach=False,
    )
    for step in range(3):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            a.grad = torch.sin(torch.arange(a.numel()) + step).view_as(a)
            b.grad = a.grad.clone()
        optimizer.step()
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_the_chosen_implementation_is_used_and_the_rate_is_a_float():
    for implementation in ("for-loop", "foreach", "fused"):
        optimizer = build_optimizer(Optimizer(implementation=implementation), listed(model()))
        for group in optimizer.param_groups:
            assert (group["fused"], group["foreach"]) == (implementation == "fused", implementation == "foreach")
            assert type(group["lr"]) is float


@pytest.mark.parametrize("implementation", ["for-loop", "foreach", "fused"])
def test_a_rank_without_parameters_steps(implementation):
    optimizer = build_optimizer(Optimizer(implementation=implementation), [])
    optimizer.step()
    optimizer.zero_grad()


def test_moments_have_the_dtype_of_the_masters():
    module = model().to(torch.bfloat16)
    optimizer = build_optimizer(Optimizer(), listed(module))
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert {state["exp_avg"].dtype for state in optimizer.state.values()} == {torch.bfloat16}
