"""Parameters by FSDP unit, with the shapes that a rank of the tensor-parallel group holds: exact, and without memory.

The real module tree is built on the meta device and cut by the real tensor-parallel plan over a process group of the
`fake` backend, one tp x cp slice of the world, so that shapes are those of a run. The rest is arithmetic: `fully_shard`
cuts dimension 0 as torch.chunk does and pads every shard to the first one's size. Blocks with equal shapes are built
once, which makes any depth cheap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from titan.config import Resolved
from titan.config.layout import Degrees
from titan.config.schema import Parallelism
from titan.models import registry
from titan.models.registry import ModelArgs, ModelSpec
from titan.parallelisms import mesh as meshes
from titan.parallelisms.parallelize import StagePlan, plan_stages, tie
from titan.parallelisms.pipeline import keep_modules
from titan.parallelisms.tensor import apply_tensor_parallel

Shape = tuple[int, ...]


def shard(shape: Shape, ranks: int, rank: int = 0) -> Shape:
    """The part of a tensor that one of `ranks` holds: torch.chunk along dimension 0, the last ranks with less or none.

    Rank 0's is the size to which the others are padded.
    """
    rows = -(-shape[0] // ranks)
    return (max(0, min(shape[0], rows * (rank + 1)) - rows * rank), *shape[1:])


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered and reduced together: a block, or the modules at an end of the model.

    Attributes:
        name: `first`, `last`, `root` (both ends in one, where they are tied), or the FQN of a block.
        shapes: by FQN, local to a tp rank and whole in all other dimensions.
    """

    name: str
    shapes: tuple[tuple[str, Shape], ...]

    @property
    def numel(self) -> int:
        """Values after the all-gather, without the padding."""
        return sum(math.prod(shape) for _fqn, shape in self.shapes)

    def shard_numel(self, ranks: int) -> int:
        """Values of one shard with its padding; times `ranks`, what is gathered and what is reduced."""
        return sum(math.prod(shard(shape, ranks)) for _fqn, shape in self.shapes)


@contextmanager
def fake_world(degrees: Degrees, rank: int = 0) -> Iterator[meshes.Mesh | None]:
    """A mesh of `degrees` as `rank` sees it, over the fake backend; None for one process.

    Raises RuntimeError where this process belongs to a process group: a plan would replace it.
    """
    if degrees.world_size == 1:
        yield None
        return
    if dist.is_initialized():
        raise RuntimeError("a plan makes a process group of its own: run `titan plan` outside of a training process")
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend `fake`

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=degrees.world_size)
    try:
        yield meshes.build(degrees, "cpu")
    finally:
        dist.destroy_process_group()


def stages_of(resolved: Resolved) -> StagePlan:
    """Stages and who holds them; one stage of all modules without a pipeline."""
    spec, args, pp = resolved.spec, resolved.model_args, resolved.degrees.pp
    if pp > 1:
        return plan_stages(spec, args, resolved.config.parallelism, pp)
    order = spec.stages
    blocks = [f"{order.blocks}.{layer}" for layer in range(spec.n_layers(args))]
    return StagePlan(((*order.first, *blocks, *order.last),), (0,))


@lru_cache(maxsize=64)
def block_kinds(model: str, args: ModelArgs) -> tuple[int, ...]:
    """For each layer the number of the first layer whose parameters have the same names and shapes."""
    spec = registry.get(model)
    with torch.device("meta"):
        blocks = spec.build(args).get_submodule(spec.stages.blocks)
    first: dict[tuple[tuple[str, torch.Size], ...], int] = {}
    kinds = []
    for layer, block in enumerate(blocks.children()):
        signature = tuple((name, parameter.shape) for name, parameter in block.named_parameters())
        kinds.append(first.setdefault(signature, layer))
    return tuple(kinds)


def cut_model(
    spec: ModelSpec, args: ModelArgs, layers: Sequence[int], mesh: meshes.Mesh | None, *, loss_parallel: bool = True
) -> nn.Module:
    """Both ends of the model and the given layers on the meta device, tensor-parallel over the mesh."""
    with torch.device("meta"):
        whole = spec.build(args)
    order = spec.stages
    part = keep_modules(whole, order, [*order.first, *(f"{order.blocks}.{layer}" for layer in layers), *order.last])
    if mesh is not None and mesh.degrees.tp > 1:
        heads: Any = args
        apply_tensor_parallel(part, mesh=mesh.tp, plan=spec.tp_plan, heads=heads, loss_parallel=loss_parallel)
        tie(part, spec, args)
    return part


@lru_cache(maxsize=64)
def _shapes(model: str, args: ModelArgs, tp: int, tp_rank: int) -> dict[str, Shape]:
    """FQN to local shape, of the ends and of one block of each kind; a tied parameter under both its names."""
    with fake_world(Degrees(tp=tp), tp_rank) as mesh:
        part = cut_model(registry.get(model), args, sorted(set(block_kinds(model, args))), mesh)
        return {
            fqn: tuple((parameter.to_local() if isinstance(parameter, DTensor) else parameter).shape)
            for fqn, parameter in part.named_parameters(remove_duplicate=False)
        }


def units(
    spec: ModelSpec, args: ModelArgs, modules: Sequence[str], *, tp: int = 1, tp_rank: int = 0
) -> tuple[Unit, ...]:
    """The units of a stage that holds `modules`, in the order of the forward; `root` comes first."""
    shapes, kinds = _shapes(spec.name, args, tp, tp_rank), block_kinds(spec.name, args)
    order = spec.stages

    def under(fqns: Sequence[str]) -> list[tuple[str, Shape]]:
        return [(fqn, shape) for fqn, shape in shapes.items() if any(fqn.startswith(f"{name}.") for name in fqns)]

    first, last = (under([name for name in ends if name in modules]) for ends in (order.first, order.last))
    blocks = []
    for name in modules:
        if name not in (*order.first, *order.last):
            kind = f"{order.blocks}.{kinds[int(name.rpartition('.')[2])]}"
            blocks.append(Unit(name, tuple((name + fqn.removeprefix(kind), shape) for fqn, shape in under([kind]))))
    if first and last and spec.tied(args):
        second = {name for _canonical, name in spec.tied(args)}
        root = tuple(pair for pair in (*first, *last) if pair[0] not in second)
        return (Unit("root", root), *blocks)
    ends = [Unit(name, tuple(pairs)) for name, pairs in (("first", first), ("last", last)) if pairs]
    return (*[unit for unit in ends if unit.name == "first"], *blocks, *[unit for unit in ends if unit.name == "last"])


def itemsize(dtype: str) -> int:
    """Bytes of one value of a dtype, by torch's name."""
    return getattr(torch, dtype).itemsize  # type: ignore[no-any-return]


def reshards(parallelism: Parallelism, pp: int) -> bool | int:
    """What happens to a block after its forward, as `fully_shard` takes it."""
    from titan.parallelisms.data_parallel import resolve_reshard

    return resolve_reshard(parallelism.fsdp_reshard_after_forward, pipelined=pp > 1)
