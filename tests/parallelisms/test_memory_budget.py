"""The compiler keeps fewer activations the smaller the budget, at the same numbers, and draws what it chose from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

from titan.models import registry
from titan.models.llama3.args import LlamaArgs
from titan.parallelisms.activation_checkpoint import set_memory_budget
from titan.parallelisms.compile import apply_compile

ARGS = LlamaArgs(dim=64, n_layers=1, n_heads=4, n_kv_heads=2, hidden_dim=96, vocab_size=251)


@pytest.fixture(autouse=True)
def _settings_as_before() -> Iterator[None]:
    yield
    set_memory_budget(None, None)
    torch._dynamo.reset()


def run(budget: float | None, folder: Path | None = None) -> tuple[int, list[Tensor]]:
    """Bytes that the compiled blocks save for the backward, weights apart; and the gradients."""
    torch._dynamo.reset()
    set_memory_budget(budget, folder)
    torch.manual_seed(0)
    model: Any = registry.get("llama3").build(ARGS)
    apply_compile(model.layers, backend="aot_eager", split_backward=False)
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            saved[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    ids = torch.randint(0, 251, (2, 32))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    return sum(saved.values()), [parameter.grad for parameter in model.parameters()]


def test_a_smaller_budget_saves_less_at_the_same_gradients() -> None:
    (whole, plain), (half, of_half), (none, of_none) = run(None), run(0.5), run(0.0)  # None: the compiler's own choice
    assert none < half < whole, (none, half, whole)
    assert none < 0.5 * whole
    for found in (of_half, of_none):
        for gradient, wanted in zip(found, plain, strict=True):
            torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-7)


def test_the_curve_of_budgets_is_drawn_into_the_folder(tmp_path: Path) -> None:
    run(0.5, tmp_path / "pareto")
    (drawn,) = (tmp_path / "pareto").glob("*.svg")
    assert "<svg" in drawn.read_text()[:600]
