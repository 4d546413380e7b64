"""Which KV heads a rank attends with, which names a pattern covers, and a plan that misses a module refused.

The tensor-parallel numbers are in tests/distributed/test_parity.py; here one rank's share of the weights is looked at.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.distributed import tiny
from tests.distributed.ranks import run_ranks
from titan.models import registry
from titan.models.llama3.args import LlamaArgs
from titan.parallelisms.tensor import apply_tensor_parallel, kv_heads_of, matches

SPEC = registry.get("llama3")
ARGS = LlamaArgs(dim=32, n_layers=1, n_heads=4, n_kv_heads=1, hidden_dim=48, vocab_size=251)


def model() -> nn.Module:
    torch.manual_seed(0)
    return SPEC.build(ARGS)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("tp", "n_heads", "n_kv_heads", "wanted"),
    [
        (4, 4, 2, [[0], [0], [1], [1]]),
        (4, 8, 1, [[0], [0], [0], [0]]),
        (8, 8, 4, [[0], [0], [1], [1], [2], [2], [3], [3]]),
        (2, 6, 3, [[0, 0, 1], [1, 2, 2]]),  # a head shared across ranks: one entry a query head
        (2, 12, 3, [[0, 0, 0, 0, 1, 1], [1, 1, 2, 2, 2, 2]]),
        (4, 12, 6, [[0, 0, 1], [1, 2, 2], [3, 3, 4], [4, 5, 5]]),
        (4, 24, 6, [[0, 0, 0, 0, 1, 1], [1, 1, 2, 2, 2, 2], [3, 3, 3, 3, 4, 4], [4, 4, 5, 5, 5, 5]]),
    ],
)
def test_kv_heads_of_each_rank(tp: int, n_heads: int, n_kv_heads: int, wanted: list[list[int]]) -> None:
    assert [kv_heads_of(rank, tp, n_heads, n_kv_heads) for rank in range(tp)] == wanted


@pytest.mark.quick
def test_each_query_head_finds_its_kv_head_at_its_place() -> None:
    """Grouped attention reads KV entry `query x entries / queries`: that must be the head of the whole model."""
    for n_kv_heads in (1, 2, 3, 4, 6, 8):
        for group in (1, 2, 3, 4, 8):
            n_heads = n_kv_heads * group
            for tp in (tp for tp in range(1, n_heads + 1) if n_heads % tp == 0):
                per_rank = n_heads // tp
                for rank in range(tp):
                    mine = kv_heads_of(rank, tp, n_heads, n_kv_heads)
                    assert per_rank % len(mine) == 0
                    for query in range(per_rank):
                        assert mine[query * len(mine) // per_rank] == (rank * per_rank + query) // group


@pytest.mark.quick
def test_a_star_is_one_name() -> None:
    assert matches("layers.*.attention.wq", "layers.12.attention.wq")
    assert not matches("layers.*", "layers.1.attention")
    assert not matches("layers.*.wq", "layers.1.attention.wq")
    assert not matches("norm", "layers.0.norm")
    assert not matches("output", "outputs")
    assert not matches("a.b", "axb")


def apply_without(missing: str) -> list[str]:
    """The message a rank gives for a plan without one entry, or nothing."""
    plan = {pattern: style for pattern, style in SPEC.tp_plan.items() if pattern != missing}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    try:
        apply_tensor_parallel(model(), mesh=mesh, plan=plan, heads=ARGS, loss_parallel=True)
    except ValueError as error:
        return [str(error)]
    return []


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("layers.*.feed_forward.w2", "layers.0.feed_forward.w2.weight"),
        ("layers.*.ffn_norm", "layers.0.ffn_norm.weight"),
        ("output", "output.weight"),
        ("layers.*.attention.wk", "layers.0.attention.wk.weight"),
    ],
)
def test_a_plan_that_misses_a_module_is_refused_on_every_rank(missing: str, named: str) -> None:
    for messages in run_ranks(apply_without, 2, missing):
        assert len(messages) == 1
        assert f"covers none of {named}: add a pattern" in messages[0]


def sharded(loss_parallel: bool) -> dict[str, Any]:
    """Local shape, whole shape and placement of every parameter of this rank."""
    part = model()
    whole = {name: tuple(parameter.shape) for name, parameter in part.named_parameters()}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    apply_tensor_parallel(part, mesh=mesh, plan=SPEC.tp_plan, heads=ARGS, loss_parallel=loss_parallel)
    found: dict[str, Any] = {name: parameter for name, parameter in part.named_parameters()}
    assert {name: tuple(parameter.shape) for name, parameter in found.items()} == whole, (
        "names and shapes stay the model's"
    )
    return {name: (tuple(p.to_local().shape), p.placements[0]) for name, p in found.items()}


def test_weights_lie_where_the_plan_says() -> None:
    first, second = run_ranks(sharded, 2, True)
    at = "layers.0.attention"
    assert first[f"{at}.wq.weight"] == ((16, 32), Shard(0))
    assert first[f"{at}.wo.weight"] == ((32, 16), Shard(1))
    assert first[f"{at}.wk.weight"] == ((8, 32), Replicate()), "one KV head on two ranks is not cut"
    assert first["layers.0.attention_norm.weight"] == ((32,), Replicate())
    assert first["layers.0.feed_forward.w2.weight"] == ((32, 24), Shard(1))
    assert (first["output.weight"][0], second["output.weight"][0]) == ((126, 32), (125, 32)), "an uneven vocabulary"
    assert first["tok_embeddings.weight"] == ((126, 32), Shard(0))


class Sizes(TorchDispatchMode):
    """The largest local tensor that any operator makes."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        self.largest = max([self.largest, *(one.numel() for one in tree_leaves(result) if isinstance(one, Tensor))])
        return result


def embedded() -> tuple[bool, int]:
    """Whether the uneven embedding gives rows and gradient of the whole one, bit for bit; its largest tensor."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    whole, ids = nn.Embedding(251, 8), torch.tensor([[0, 250, 125, 126, 7, 126, 0, 250]])
    rows, weight = whole(ids), whole.weight.detach().clone()
    rows.backward(torch.arange(64.0).reshape(1, 8, 8))
    cut = nn.Sequential(nn.Embedding.from_pretrained(weight, freeze=False))
    apply_tensor_parallel(cut, mesh=mesh, plan={"0": "vocab_embedding"}, heads=ARGS, loss_parallel=True)
    with Sizes() as sizes:
        mine = cut(ids)
        mine.backward(torch.arange(64.0).reshape(1, 8, 8).chunk(2, 1)[mesh.get_local_rank()])
    same = torch.equal(mine, rows.chunk(2, 1)[mesh.get_local_rank()])
    assert cut[0].weight.grad.placements == (Shard(0),)
    return same and torch.equal(cut[0].weight.grad.full_tensor(), whole.weight.grad), sizes.largest


def test_an_embedding_is_cut_by_rows_and_so_is_its_gradient_at_every_moment() -> None:
    assert run_ranks(embedded, 2) == [(True, 126 * 8), (True, 125 * 8)]


def forward_shapes(loss_parallel: bool) -> tuple[int, ...]:
    part = model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    apply_tensor_parallel(part, mesh=mesh, plan=SPEC.tp_plan, heads=ARGS, loss_parallel=loss_parallel)
    return tuple(part(torch.arange(32).reshape(2, 16) % 251).shape)


def test_logits_stay_sharded_for_the_loss_or_are_gathered() -> None:
    assert run_ranks(forward_shapes, 2, True) == [(2, 16, 126), (2, 16, 125)]
    assert run_ranks(forward_shapes, 2, False) == [(2, 16, 251)] * 2


def warned() -> list[str]:
    """What a run of three steps under tensor parallelism warns of."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        tiny.run_layout({"parallelism": {"tensor_parallel_degree": 2}})
    return [str(warning.message) for warning in found]


def test_a_run_warns_of_nothing() -> None:
    assert run_ranks(warned, 2, fresh=True) == [[], []]
