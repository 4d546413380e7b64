"""Tensor parallelism with sequence parallelism (Megatron-LM, arXiv:1909.08053 and 2205.05198), from a model's plan.

The plan names a style a module; this file turns each name into a `ParallelStyle` of torch. Activations between
blocks are sharded along the sequence, gathered once before attention and once before the feed-forward. Where tp
does not divide the KV heads, their projections are replicated and each rank slices the heads that its query heads
use: names and shapes in checkpoints stay those of the model. Gradients of replicated weights arrive as partial
sums; FSDP2 reduces them to the placement of the weight.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from titan.models.registry import TPStyle
from titan.parallelisms.shards import local_region


class Heads(Protocol):
    """What the plan's `kv_heads` style reads of a model's arguments."""

    n_heads: int

    @property
    def kv_heads(self) -> int: ...
    @property
    def head_size(self) -> int: ...


def kv_heads_of(rank: int, tp: int, n_heads: int, n_kv_heads: int) -> list[int]:
    """KV heads that a tp rank attends with where tp does not divide them, in the order of its query heads.

    One entry a KV head where its query heads share them evenly, else one a query head (a head can then stand there
    twice).
    """
    per_rank, group = n_heads // tp, n_heads // n_kv_heads
    used = [head // group for head in range(rank * per_rank, (rank + 1) * per_rank)]
    distinct = sorted(set(used))
    even = all(used.count(head) == len(used) // len(distinct) for head in distinct)
    return distinct if even else used


class KVHeadsParallel(ParallelStyle):
    """Column-wise over KV heads where tp divides them, else replicated and sliced after the projection."""

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.heads = heads

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        tp, heads = device_mesh.size(), self.heads
        if heads.kv_heads % tp == 0:
            return ColwiseParallel()._apply(module, device_mesh)
        mine = kv_heads_of(device_mesh.get_local_rank(), tp, heads.n_heads, heads.kv_heads)

        def slice_heads(_module: nn.Module, output: DTensor, _mesh: DeviceMesh) -> Tensor:
            # Each rank's gradient covers its own heads only: the whole one is their sum, hence Partial.
            local = output.to_local(grad_placements=[Partial()])
            every = local.view(*local.shape[:-1], heads.kv_heads, heads.head_size)
            if mine == list(range(mine[0], mine[-1] + 1)):
                return every[..., mine[0] : mine[-1] + 1, :].flatten(-2)
            return every[..., torch.tensor(mine, device=every.device), :].flatten(-2)

        return distribute_module(module, device_mesh, output_fn=slice_heads)  # type: ignore[arg-type]


class VocabularyParallel(ParallelStyle):
    """An embedding of which each rank holds some rows: it gives zeros for the ids of others, and the sum over ranks is
    scattered along the sequence.

    Looked up in local rows, since the gradient of torch's row-wise embedding is first made whole on each rank:
    vocabulary x dim, 3.9 GiB for Llama 3 405B.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, nn.Embedding):
            raise TypeError(f"the style vocab_embedding is for nn.Embedding, not {type(module).__name__}")
        weight = distribute_tensor(module.weight, device_mesh, [Shard(0)])
        first = local_region(weight)[0].start
        module.register_parameter("weight", nn.Parameter(weight, requires_grad=module.weight.requires_grad))

        def forward(ids: Tensor) -> Tensor:
            """(rows, seq) to this rank's part of (rows, seq / tp, dim)."""
            assert isinstance(module.weight, DTensor)
            weight = module.weight.to_local()
            local = ids - first
            elsewhere = (local < 0) | (local >= weight.shape[0])
            found = F.embedding(local.masked_fill(elsewhere, 0), weight).masked_fill(elsewhere.unsqueeze(-1), 0.0)
            partial = DTensor.from_local(found, device_mesh, [Partial()], run_check=False)
            scattered = partial.redistribute(placements=[Shard(1)]).to_local()
            # A block compiled with AOTAutograd sends no gradient back through an AsyncCollectiveTensor that it takes as
            # input (torch 2.13: it is silently zero). A copy waits for the collective and is a plain tensor.
            return scattered.clone() if isinstance(scattered, AsyncCollectiveTensor) else scattered

        module.forward = forward  # type: ignore[assignment, method-assign]
        return module


def _style(name: TPStyle, heads: Heads, loss_parallel: bool) -> ParallelStyle:
    match name:
        case "vocab_embedding":
            return VocabularyParallel()
        case "sequence":
            return SequenceParallel()
        case "gather_sequence":
            return PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        case "colwise":
            return ColwiseParallel()
        case "kv_heads":
            return KVHeadsParallel(heads)
        case "rowwise":
            return RowwiseParallel(output_layouts=Shard(1))
        case "vocab_head":
            return ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1) if loss_parallel else Replicate())


def matches(pattern: str, fqn: str) -> bool:
    """Whether a plan's pattern, in which `*` stands for one name, covers this FQN."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", r"[^.]+"), fqn) is not None


def apply_tensor_parallel(
    part: nn.Module, *, mesh: DeviceMesh, plan: Mapping[str, TPStyle], heads: Heads, loss_parallel: bool
) -> None:
    """Shards one model part in place over a 1-D mesh; modules that another stage holds are passed over.

    Raises:
        ValueError: a parameter of the part is covered by no entry of the plan: it would silently stay whole on every
        rank.
    """
    styles = {}
    for fqn, _module in part.named_modules():
        name = next((style for pattern, style in plan.items() if matches(pattern, fqn)), None)
        if name is not None:
            styles[fqn] = _style(name, heads, loss_parallel)
    parallelize_module(part, mesh, styles)
    # The local logits are a view of a DTensor, of which FSDP2 warns at each forward. Nothing writes into them.
    warnings.filterwarnings("ignore", r"FSDP2-wrapped module \(.*\) returned a view tensor", UserWarning)
    left = [fqn for fqn, parameter in part.named_parameters() if not isinstance(parameter, DTensor)]
    if left:
        raise ValueError(
            f"the tensor-parallel plan covers none of {', '.join(left)}: add a pattern for each of these modules"
        )
