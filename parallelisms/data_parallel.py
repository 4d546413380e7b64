"""FSDP, HSDP and DDP through one path: `fully_shard` of each block over the mesh (dp_replicate, fsdp), also where both
are 1.

Degree 1 x 1 still goes through it when there is more than one process, so that tp-only and pp-only runs get the
same mixed precision and the same reduced DTensor gradients. Every reduction is a SUM: the loss is divided by the
global token count already. Parameters are gathered in the compute dtype, gradients are reduced in float32, masters
and optimizer state stay in the master dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard


@dataclass(frozen=True)
class DataParallel:
    """How parameters are kept between uses.

    Attributes:
        reshard_after_forward: free the gathered block after its forward (True), keep it until its backward (False),
            or keep it sharded over this many ranks (int).
        param_dtype: dtype of compute.
        reduce_dtype: dtype of the gradient reduction.
        cpu_offload: keep shards, gradients and optimizer state in host memory.
    """

    reshard_after_forward: bool | int
    param_dtype: torch.dtype
    reduce_dtype: torch.dtype
    cpu_offload: bool = False

    @property
    def policy(self) -> MixedPrecisionPolicy:
        # Inputs are not cast: hidden states are in param_dtype already, and rotations must stay float32.
        return MixedPrecisionPolicy(self.param_dtype, self.reduce_dtype, cast_forward_inputs=False)

    @property
    def offload(self) -> OffloadPolicy:
        return CPUOffloadPolicy() if self.cpu_offload else OffloadPolicy()


def resolve_reshard(option: str | int, *, pipelined: bool) -> bool | int:
    """`fsdp_reshard_after_forward` as torch takes it. The default keeps blocks gathered under a pipeline.

    A pipeline would gather each block again for every microbatch; and under schedules that split the backward, hooks
    that free and gather again give wrong gradients without an error (torch 2.13), which a rule of the configuration
    refuses.
    """
    if isinstance(option, int):
        return option
    return {"default": not pipelined, "always": True, "never": False}[option]


def skips_sync_in_accumulation(option: DataParallel, fsdp: int) -> bool:
    """Whether gradients may stay unreduced between accumulation steps: only where whole gradients fit anyway.

    True where parameters are not sharded, or are kept gathered by choice; otherwise every accumulation step reduces
    into shards.
    """
    return fsdp == 1 or option.reshard_after_forward is False


def apply_data_parallel(
    part: nn.Module,
    *,
    blocks: Sequence[nn.Module],
    groups: Sequence[Sequence[nn.Module]],
    mesh: DeviceMesh,
    option: DataParallel,
) -> None:
    """Shards one model part in place.

    Args:
        blocks: the repeated layers in order, one FSDP group each.
        groups: further groups of modules (the embedding; the final norm and head); what is in none is the root's.
        mesh: 2-D (dp_replicate, fsdp).
    """

    def shard(modules: nn.Module | list[nn.Module], reshard: bool | int) -> None:
        fully_shard(
            modules,
            mesh=mesh,
            reshard_after_forward=reshard,
            mp_policy=option.policy,
            offload_policy=option.offload,
        )

    for block in blocks:
        shard(block, option.reshard_after_forward)
    for group in groups:
        shard(list(group), False)  # used once at either end: the last group of the forward is the first of the backward
    shard(part, False)
    for module in part.modules():
        if isinstance(module, FSDPModule):
            # Factor 1 alone would use PREMUL_SUM, which gloo refuses.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    _prefetch_neighbours([block for block in blocks if isinstance(block, FSDPModule)])


def _prefetch_neighbours(blocks: Sequence[FSDPModule]) -> None:
    for block, following in pairwise(blocks):
        block.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([block])


def set_gradient_sync(parts: Sequence[nn.Module], enabled: bool) -> None:
    """Whether the next backward reduces gradients; off inside accumulation where memory allows."""
    for part in parts:
        if isinstance(part, FSDPModule):
            part.set_requires_gradient_sync(enabled)


def sum_in_reduce_dtype(part: nn.Module) -> None:
    """Moves gradients that a backward without hooks has left in the compute dtype to FSDP2's sums in the reduce dtype.

    FSDP2's hook does so after each backward; where weight gradients are computed apart, several microbatches would be
    added up in bfloat16 before it runs (torch 2.13). Private names of FSDP2, used here and nowhere else.
    """
    for module in part.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                for parameter in group.fsdp_params:
                    parameter.accumulate_unsharded_grad_if_needed()
                    parameter.to_accumulated_grad_if_needed()
