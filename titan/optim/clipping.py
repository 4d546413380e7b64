"""Clipping by the norm of the whole model's gradient, each parameter once, in every layout with one all-reduce.

Each rank sums the squares of the shards that are its own: a shard that is replicated over some mesh dimension counts on the ranks with
coordinate 0 there, a tied copy on another stage not at all. The same formula as `torch.nn.utils.clip_grad_norm_`, without its
all-reduce a mesh dimension and its refusal of several meshes. Nothing here waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate

from titan.parallelisms.parameters import NamedParameter


def _counts_here(grad: Tensor) -> bool:
    if not isinstance(grad, DTensor):
        return True
    coordinate = grad.device_mesh.get_coordinate() or []
    for place, placement in zip(coordinate, grad.placements, strict=True):
        if isinstance(placement, Partial):
            raise ValueError(f"a gradient is a partial sum over ranks ({grad.placements}): it must be reduced before its norm")
        if isinstance(placement, Replicate) and place != 0:
            return False
    return True


def _local(grad: Tensor) -> Tensor:
    return grad.to_local() if isinstance(grad, DTensor) else grad


def global_norm(parameters: Sequence[NamedParameter], device: torch.device) -> Tensor:
    """The 2-norm of all gradients of the job, 0-dim float32, the same on every rank. A collective call."""
    grads = [
        _local(named.parameter.grad)
        for named in parameters
        if named.counted and named.parameter.grad is not None and _counts_here(named.parameter.grad)
    ]
    if grads:
        squares = torch.stack(torch._foreach_norm(grads)).float().square().sum().to(device)
    else:
        squares = torch.zeros((), device=device)
    if dist.is_initialized():
        dist.all_reduce(squares)
    return squares.sqrt()


@torch.no_grad()
def clip_(parameters: Sequence[NamedParameter], norm: Tensor, max_norm: float) -> None:
    """Scales all gradients in place by min(1, max_norm / (norm + 1e-6)); inf leaves them alone."""
    if math.isinf(max_norm):
        return
    grads = [_local(named.parameter.grad) for named in parameters if named.parameter.grad is not None]
    if grads:
        torch._foreach_mul_(grads, (max_norm / (norm + 1e-6)).clamp(max=1.0).to(grads[0].device))
