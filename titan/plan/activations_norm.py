"""RMSNorm as accelerators compute it: one kernel, which keeps its input and one float32 a token for the backward.

Tracing runs on fake CPU tensors, where torch 2.13 composes its norm of single operators (our `RMSNorm` leaves only the
DTensors of sequence parallelism to it) and keeps five copies of the hidden states in their place: 0.6 GiB a layer of
Llama 3 8B at two rows of 8192 tokens that no GPU holds.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.tensor import DTensor, Partial


def use_fused_norms(part: nn.Module) -> None:
    """Replaces the forward of every `nn.RMSNorm`; for tracing only, as the numbers are not those of a norm."""
    for module in part.modules():
        if isinstance(module, nn.RMSNorm):
            module.forward = partial(_forward, module)  # type: ignore[method-assign]


def _forward(module: nn.RMSNorm, x: Tensor) -> Tensor:
    out: Tensor = _FusedNorm.apply(x, module.weight)  # type: ignore[no-untyped-call]
    return out


class _FusedNorm(Function):
    """Reads, writes and keeps what `aten::_fused_rms_norm` does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        statistics = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
        ctx.save_for_backward(x, weight, statistics)
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _statistics = ctx.saved_tensors
        if isinstance(weight, DTensor):  # each rank's gradient covers its own tokens
            local = DTensor.from_local(torch.empty_like(weight.to_local()), weight.device_mesh, [Partial()])
            return grad * x, local
        return grad * x, torch.empty_like(weight)
