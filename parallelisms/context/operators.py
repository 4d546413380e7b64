"""The communicating parts as opaque operators `titan::*`, so that compilers and checkpointing see one node each.

`torch.compile(fullgraph=True)` traces through them by their fake versions, and selective activation checkpointing keeps
their outputs by name (namespace `titan`) instead of communicating a second time. Groups go in by name, since an
operator takes no Python objects. Outputs share memory with no input and with each other, which custom operators
require, and are ordered in memory (batch, seq, heads, head_dim), which the fake versions promise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from titan.models.layers.block_attention import empty_sequence_major
from titan.parallelisms.context.sums import wide

BlockAttention = Callable[[Tensor, Tensor, Tensor, str, bool], tuple[Tensor, Tensor]]
_Forward = Callable[[Tensor, Tensor, Tensor, dist.ProcessGroup, bool], tuple[Tensor, Tensor]]
_Backward = Callable[
    [Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, dist.ProcessGroup, bool], tuple[Tensor, Tensor, Tensor]
]


def process_group(name: str) -> dist.ProcessGroup:
    c10d: Any = dist.distributed_c10d
    group: dist.ProcessGroup = c10d._resolve_process_group(
        name
    )  # private: the registry of torch's functional collectives
    return group


def block_attention_operator(name: str, forward: _Forward, backward: _Backward) -> BlockAttention:
    """Registers `titan::<name>` and `titan::<name>_backward` and returns the first, with its autograd.

    It is `(q, k, v, group name, headtail) -> (out, logsumexp)`; logsumexp is for the backward and has no gradient.
    """

    def run(q: Tensor, k: Tensor, v: Tensor, group: str, headtail: bool) -> tuple[Tensor, Tensor]:
        return forward(q, k, v, process_group(group), headtail)

    def run_fake(q: Tensor, k: Tensor, v: Tensor, group: str, headtail: bool) -> tuple[Tensor, Tensor]:
        return _empty_like(q), q.new_empty(q.shape[:-1], dtype=wide(q.dtype))

    def run_backward(
        grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, group: str, headtail: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        return backward(grad_out, q, k, v, out, logsumexp, process_group(group), headtail)

    def run_backward_fake(
        grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, group: str, headtail: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        return _empty_like(q), _empty_like(k), _empty_like(v)

    def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        q, k, v, ctx.group, ctx.headtail = inputs
        ctx.save_for_backward(q, k, v, *output)
        ctx.mark_non_differentiable(output[1])

    def differentiate(ctx: Any, grad_out: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        return (*gradient(grad_out, *ctx.saved_tensors, ctx.group, ctx.headtail), None, None)

    arguments = "Tensor q, Tensor k, Tensor v, str group, bool headtail"
    operator = torch.library.custom_op(
        f"titan::{name}", run, mutates_args=(), schema=f"({arguments}) -> (Tensor, Tensor)"
    )
    gradient = torch.library.custom_op(
        f"titan::{name}_backward",
        run_backward,
        mutates_args=(),
        schema="(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor logsumexp, str group, bool headtail)"
        " -> (Tensor, Tensor, Tensor)",
    )
    operator.register_fake(run_fake)
    operator.register_autograd(differentiate, setup_context=remember)
    gradient.register_fake(run_backward_fake)
    return operator


@torch.library.custom_op("titan::all_to_all", mutates_args=(), schema="(Tensor x, str group) -> Tensor")
def all_to_all(x: Tensor, group: str) -> Tensor:
    """Slice i of dim 0 goes to rank i of the group; what comes back is ordered by sender. x `(cp, ...)` contiguous."""
    received = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(received, x.contiguous(), group=process_group(group))
    return received


@all_to_all.register_fake
def _(x: Tensor, group: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _all_to_all_remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.group = inputs[1]


def _all_to_all_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return all_to_all(grad, ctx.group), None  # each slice goes back to its sender


all_to_all.register_autograd(_all_to_all_backward, setup_context=_all_to_all_remember)


def _empty_like(x: Tensor) -> Tensor:
    return empty_sequence_major(x.shape, dtype=x.dtype, device=x.device)
