"""Activation checkpointing changes no number, bit for bit, dropout included, and runs twice what its mode says (C31).

Operators of forward and backward are counted under a TorchDispatchMode: full runs every matrix product of a block
again, per operator runs every second one again and attention never, every n-th block runs those blocks again.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from titan.models import registry
from titan.models.llama3.args import LlamaArgs
from titan.parallelisms.activation_checkpoint import apply_activation_checkpoint

pytestmark = pytest.mark.quick
LAYERS = 4
ARGS = LlamaArgs(dim=32, n_layers=LAYERS, n_heads=4, n_kv_heads=2, hidden_dim=48, vocab_size=251)
MODES = [("none", "2"), ("full", "2"), ("selective", "1"), ("selective", "2"), ("selective", "3"), ("selective", "op")]
PRODUCTS = 7
"""Matrix products of a block's forward: wq, wk, wv, wo, w1, w3, w2."""


class Counted(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


class Dropped(nn.Module):
    """A block followed by dropout: recomputation must draw the same mask."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, h: Tensor, rotation: Any) -> Tensor:
        return nn.functional.dropout(self.block(h, rotation), 0.3)


def run(mode: Any, option: str, *, dropout: bool = False) -> tuple[Tensor, dict[str, Tensor], Counter[str], int]:
    """Loss, gradients by canonical name, operators of forward and backward, blocks wrapped."""
    torch.manual_seed(0)
    model: Any = registry.get("llama3").build(ARGS)
    if dropout:
        for name in model.layers:
            model.layers[name] = Dropped(model.layers[name])
    wrapped = apply_activation_checkpoint(model.layers, mode=mode, selective_option=option)
    ids = torch.randint(0, 251, (2, 16))
    with Counted() as counted:
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
    grads = {name.replace("_checkpoint_wrapped_module.", ""): p.grad for name, p in model.named_parameters()}
    return loss.detach(), grads, counted.calls, wrapped


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize(("mode", "option"), MODES[1:])
def test_numbers_are_the_same_bit_for_bit(mode: str, option: str, dropout: bool) -> None:
    loss, grads, _calls, _wrapped = run(mode, option, dropout=dropout)
    plain_loss, plain_grads, _calls, _wrapped = run("none", "2", dropout=dropout)
    assert torch.equal(loss, plain_loss)
    assert grads.keys() == plain_grads.keys()
    assert [name for name in grads if not torch.equal(grads[name], plain_grads[name])] == []


def test_dropout_is_really_drawn() -> None:
    assert not torch.equal(run("none", "2", dropout=True)[0], run("none", "2")[0])


@pytest.mark.parametrize(
    ("mode", "option", "wrapped", "products", "attention"),
    [
        ("none", "2", 0, 0, 0),
        ("full", "2", LAYERS, LAYERS * PRODUCTS, LAYERS),
        ("selective", "1", LAYERS, LAYERS * PRODUCTS, LAYERS),
        ("selective", "2", 2, 2 * PRODUCTS, 2),  # layers 0 and 2
        ("selective", "3", 2, 2 * PRODUCTS, 2),  # layers 0 and 3
        ("selective", "op", LAYERS, LAYERS * (PRODUCTS // 2), 0),  # products 2, 4 and 6 of each block
    ],
)
def test_each_mode_runs_again_what_it_says(mode: str, option: str, wrapped: int, products: int, attention: int) -> None:
    _loss, _grads, calls, found = run(mode, option)
    plain = run("none", "2")[2]
    assert found == wrapped
    assert calls["mm"] - plain["mm"] == products
    name = "_scaled_dot_product_flash_attention_for_cpu"
    assert plain[name] == LAYERS
    assert calls[name] - plain[name] == attention
    assert calls["silu"] - plain["silu"] == wrapped, "cheap operators run again in each wrapped block"


def test_layers_are_chosen_by_their_global_number() -> None:
    """A stage with layers 3, 4 and 5 wraps what one process would: layer 4."""
    blocks = nn.ModuleDict({str(number): nn.Linear(2, 2) for number in (3, 4, 5)})
    assert apply_activation_checkpoint(blocks, mode="selective", selective_option="2") == 1
    assert [name for name, block in blocks.items() if not isinstance(block, nn.Linear)] == ["4"]


@pytest.mark.parametrize(
    ("names", "again"),
    [([], PRODUCTS // 2), (["nothing.of.that.name"], PRODUCTS // 2), (["feed_forward.w2"], 4), (["attention.wq"], 4)],
)
def test_products_of_the_named_layers_shapes_always_run_again(names: list[str], again: int) -> None:
    """w2 alone has its shape: it runs again, and three of the other six. wq and wo have one: both, and two of five."""
    torch.manual_seed(0)
    model: Any = registry.get("llama3").build(ARGS)
    apply_activation_checkpoint(model.layers, mode="selective", selective_option="op", recompute=names)
    ids = torch.randint(0, 251, (2, 16))
    with Counted() as counted:
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
    plain = run("none", "2")
    assert torch.equal(loss.detach(), plain[0])
    grads = {name.replace("_checkpoint_wrapped_module.", ""): p.grad for name, p in model.named_parameters()}
    assert [name for name, grad in plain[1].items() if not torch.equal(grads[name], grad)] == []
    assert counted.calls["mm"] - plain[2]["mm"] == LAYERS * again
