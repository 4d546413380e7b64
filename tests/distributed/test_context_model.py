"""Context parallelism inside a model: whole-model gradients eager, compiled and under activation checkpointing.

A small Llama on two ranks, each with its part of every sequence, against the same model on one device: logits and every
parameter's gradient. And what the operators promise to torch: compiled with fullgraph, their outputs kept by selective
checkpointing rather than communicated again, nothing left behind after a step.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.distributed.ranks import run_ranks
from titan.models.llama3.args import LlamaArgs
from titan.models.llama3.model import Llama
from titan.parallelisms.activation_checkpoint import apply_activation_checkpoint
from titan.parallelisms.compile import apply_compile
from titan.parallelisms.context import Method, apply_context_parallel, local_positions, shard_sequence

METHODS: tuple[Method, ...] = ("allgather", "alltoall", "ulysses")
ARGS = LlamaArgs(dim=32, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=61, hidden_dim=48)
SEQ = 24

Result = dict[str, Tensor]


def model() -> Llama:
    torch.manual_seed(0)
    return Llama(ARGS)


def data() -> tuple[Tensor, Tensor]:
    """Token ids and the gradient of the logits."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(61, (2, SEQ), generator=generator)
    return ids, torch.randn(2, SEQ, 61, generator=generator)


def gradients(whole: nn.Module) -> Result:
    return {name: p.grad.clone() for name, p in whole.named_parameters() if p.grad is not None}


def one_device() -> tuple[Tensor, Result]:
    alone = model()
    ids, grad = data()
    logits = alone(ids)
    logits.backward(grad)
    return logits.detach(), gradients(alone)


@contextmanager
def communication() -> Iterator[Counter[str]]:
    """Counts what the methods hand to torch.distributed while it is open; it is still sent."""
    calls: Counter[str] = Counter()
    names = ("all_gather_single", "reduce_scatter_single", "batch_isend_irecv", "all_to_all_single")
    originals = {name: getattr(dist, name) for name in names}

    def counted(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return originals[name](*args, **kwargs)

        return call

    for name in names:
        setattr(dist, name, counted(name))
    try:
        yield calls
    finally:
        for name in names:
            setattr(dist, name, originals[name])


def step(method: Method, *, checkpoint: str = "none", compiled: bool = False) -> tuple[float, dict[str, int]]:
    """One forward and backward on this rank's tokens: the largest difference from one device, and what was sent."""
    group = dist.group.WORLD
    assert group is not None
    cp, rank = group.size(), group.rank()
    logits, expected = one_device()
    part = model()
    apply_context_parallel(part, group=group, method=method, load_balancer="headtail")
    option = "op" if checkpoint == "selective" else "1"
    apply_activation_checkpoint(part.layers, mode=checkpoint, selective_option=option)  # type: ignore[arg-type]
    if compiled:
        apply_compile(part.layers, backend="aot_eager", split_backward=False)
    ids, grad = (shard_sequence(x, 1, cp, rank, "headtail") for x in data())
    with communication() as calls:
        mine = part(ids, local_positions(SEQ, cp, rank, "headtail"))
        mine.backward(grad)
    worst = off(mine.detach(), shard_sequence(logits, 1, cp, rank, "headtail"))
    for name, gradient in gradients(part).items():
        dist.all_reduce(gradient, group=group)
        worst = max(worst, off(gradient, expected[name.replace("._checkpoint_wrapped_module", "")]))
    return worst, dict(calls)


def off(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).nan_to_num(torch.inf).item()


def steps() -> dict[tuple[str, ...], tuple[float, dict[str, int]]]:
    found: dict[tuple[str, ...], tuple[float, dict[str, int]]] = {}
    for method in METHODS:
        for checkpoint in ("none", "full", "selective"):
            found[method, checkpoint, "eager"] = step(method, checkpoint=checkpoint)
        for checkpoint in ("none", "selective"):
            torch._dynamo.reset()
            found[method, checkpoint, "compiled"] = step(method, checkpoint=checkpoint, compiled=True)
    return found


def repeated() -> dict[str, list[int]]:
    """Live tensors after each of eight steps of one model."""
    group = dist.group.WORLD
    assert group is not None
    counts: dict[str, list[int]] = {}
    for method in METHODS:
        part = model()
        apply_context_parallel(part, group=group, method=method, load_balancer="headtail")
        ids, grad = (shard_sequence(x, 1, group.size(), group.rank(), "headtail") for x in data())
        positions = local_positions(SEQ, group.size(), group.rank(), "headtail")
        counts[method] = []
        for _ in range(8):
            part(ids, positions).backward(grad)
            part.zero_grad()
            gc.collect()
            counts[method].append(sum(isinstance(x, Tensor) for x in gc.get_objects()))
    return counts


def checked_by_torch() -> None:
    """torch's own checks of a custom operator: schema, autograd registration, fake tensors, AOT dispatch."""
    group = dist.group.WORLD
    assert group is not None
    q, k = torch.randn(1, 4, 8, 16, requires_grad=True), torch.randn(1, 2, 8, 16, requires_grad=True)
    v = torch.randn(1, 8, 2, 16).transpose(1, 2).detach().requires_grad_()
    for operator in (torch.ops.titan.allgather_attention, torch.ops.titan.ring_attention):
        for headtail in (True, False):
            torch.library.opcheck(operator.default, (q, k, v, group.group_name, headtail))
    x = torch.randn(2, 3, 4, requires_grad=True)
    torch.library.opcheck(torch.ops.titan.all_to_all.default, (x, group.group_name))


def on_two_ranks() -> dict[str, Any]:
    checked_by_torch()
    return {"steps": steps(), "repeated": repeated()}


@pytest.fixture(scope="module")
def two_ranks() -> list[dict[str, Any]]:
    return run_ranks(on_two_ranks, 2)


def test_a_model_has_the_gradients_of_one_device(two_ranks: list[dict[str, Any]]) -> None:
    """Eager and compiled, without checkpointing and selective per operator; eager also with full."""
    for found in two_ranks:
        assert len(found["steps"]) == 15
        assert {case: worst for case, (worst, _) in found["steps"].items() if not worst <= 1e-5} == {}


def test_selective_checkpointing_does_not_communicate_again(two_ranks: list[dict[str, Any]]) -> None:
    """Two layers on two ranks: what one forward and backward send, and what a second forward adds."""
    once = {
        "allgather": {"all_gather_single": 4, "reduce_scatter_single": 2},
        "alltoall": {"batch_isend_irecv": 6},
        "ulysses": {"all_to_all_single": 8},
    }
    again = {
        "allgather": {"all_gather_single": 6, "reduce_scatter_single": 2},
        "alltoall": {"batch_isend_irecv": 8},
        "ulysses": {"all_to_all_single": 12},
    }
    for found in two_ranks:
        for method in METHODS:
            calls = {case[1:]: sent for case, (_, sent) in found["steps"].items() if case[0] == method}
            assert calls.pop(("full", "eager")) == again[method]
            assert list(calls.values()) == [once[method]] * 4


def test_steps_leave_nothing_behind(two_ranks: list[dict[str, Any]]) -> None:
    for found in two_ranks:
        for counts in found["repeated"].values():
            # What a step leaves behind raises every later count; what a communication thread still holds does not.
            assert min(counts[5:]) <= min(counts[1:4])
