"""A toy at any layout whose every value says where in which full tensor it belongs, so that a wrong place shows
exactly.

Weights are built whole and cut by torch (`distribute_tensor`, `fully_shard`), so what a layout should hold does not
rest on the offsets that are under test. The sizes are uneven on purpose: 251 and 13 rows, and dimensions of 1, 2
and 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.optim import AdamW

from titan.checkpoint import CheckpointManager
from titan.checkpoint.state import create_state
from titan.config.layout import Degrees
from titan.config.schema_checkpoint import Checkpoint
from titan.parallelisms import mesh as meshes
from titan.parallelisms.parameters import NamedParameter, named_parameters

SHAPES = {
    "tok_embeddings.weight": (251, 8),
    "layers.0.up.weight": (13, 8),
    "layers.0.norm.weight": (8,),
    "layers.0.one.weight": (1, 8),
    "layers.1.up.weight": (13, 8),
    "layers.1.down.weight": (8, 13),
    "layers.1.two.weight": (2, 8),
    "layers.1.three.weight": (3,),
    "output.weight": (251, 8),
}
TIED = {"output.weight": "tok_embeddings.weight"}
STEP = 7


@dataclass(frozen=True)
class Layout:
    """Degrees, whether both ends of the pipeline stand on its first rank (V schedule), whether the ends are tied."""

    degrees: Degrees = field(default_factory=Degrees)
    v: bool = False
    tied: bool = False

    @property
    def world_size(self) -> int:
        return self.degrees.world_size

    def stages(self, pp_rank: int) -> list[list[str]]:
        """Prefixes of the names in each model part of this rank."""
        if self.degrees.pp == 1:
            return [["tok_embeddings", "layers", "output"]]
        if self.v:
            return [[["tok_embeddings", "layers.0"], ["output"]], [["layers.1"]]][pp_rank]
        return [[["tok_embeddings", "layers.0"]], [["layers.1", "output"]]][pp_rank]


def full(fqn: str, kind: float) -> Tensor:
    """Each value tells its tensor and its place; the kind (0 weight, 1/4 and 1/2 moments) is the fraction."""
    shape = SHAPES[fqn]
    return torch.arange(torch.Size(shape).numel()).reshape(shape) + 10_000.0 * (1 + list(SHAPES).index(fqn)) + kind


def parts(layout: Layout, kind: float, mesh: meshes.Mesh | None) -> list[nn.Module]:
    """This rank's model parts, filled with the values of one kind."""
    built = []
    for prefixes in layout.stages(mesh.pp_rank if mesh else 0):
        part = nn.Module()
        names = [fqn for fqn in SHAPES if any(fqn.startswith(prefix) for prefix in prefixes)]
        for fqn in names:
            source = TIED.get(fqn, fqn) if layout.tied else fqn
            if source != fqn and source in names:
                parameter = part.get_parameter(source)
            else:
                parameter = nn.Parameter(full(source, kind))
            _place(part, fqn, parameter)
        if mesh:
            _shard(part, mesh)
        built.append(part)
    return built


def _place(part: nn.Module, fqn: str, parameter: nn.Parameter) -> None:
    *path, name = fqn.split(".")
    for child in path:
        if not hasattr(part, child):
            part.add_module(child, nn.Module())
        part = getattr(part, child)
    part.register_parameter(name, parameter)


def _shard(part: nn.Module, mesh: meshes.Mesh) -> None:
    made: dict[int, nn.Parameter] = {}
    for fqn, parameter in list(part.named_parameters(remove_duplicate=False)):
        placement = Replicate() if "norm" in fqn else Shard(1 if "down" in fqn else 0)
        if mesh.degrees.tp > 1:
            if id(parameter) not in made:
                made[id(parameter)] = nn.Parameter(distribute_tensor(parameter.detach(), mesh.tp, [placement]))
            _place(part, fqn, made[id(parameter)])
    fully_shard(part, mesh=mesh.fsdp)


class Run:
    """Model, optimizer and manager of this rank at a layout, holding the values that tell their place, or zeros."""

    def __init__(self, layout: Layout, folder: Path, *, filled: bool, **section: Any) -> None:
        self.layout = layout
        self.mesh = meshes.build(layout.degrees, "cpu") if dist.is_initialized() else None
        self.parameters = self._named(0.0)
        self.optimizer = AdamW([named.parameter for named in self.parameters], lr=1e-3, fused=True)
        self.manager = self.manager_of(folder, **section)
        create_state(self.optimizer)
        self._expected = self._values_by_kind()
        for name, tensor in self.values().items():
            tensor.copy_(self._expected[name]) if filled else tensor.zero_()

    def manager_of(self, folder: Path, **section: Any) -> CheckpointManager:
        options = {"enable": True, "last_save_model_only": False, **section}
        return CheckpointManager(Checkpoint(**options), folder, self.parameters, self.optimizer)

    def _named(self, kind: float) -> list[NamedParameter]:
        return named_parameters(parts(self.layout, kind, self.mesh), TIED if self.layout.tied else {})

    def values(self) -> dict[str, Tensor]:
        """This rank's shards of all that is saved; both copies of a tied parameter."""
        values = {}
        for number, named in enumerate(self.parameters):
            values[f"{number} {named.fqn}"] = local(named.parameter)
            for name, state in self.optimizer.state[named.parameter].items():
                values[f"{number} {named.fqn} {name}"] = local(state)
        return values

    def _values_by_kind(self) -> dict[str, Tensor]:
        values = {}
        for kind, suffix in ((0.0, ""), (0.25, " exp_avg"), (0.5, " exp_avg_sq")):
            for number, named in enumerate(self._named(kind)):
                values[f"{number} {named.fqn}{suffix}"] = local(named.parameter)
                values[f"{number} {named.fqn} step"] = torch.tensor(float(STEP))
        return values

    def wrong(self, *, weights_only: bool = False) -> list[str]:
        """Names whose values are not where and what they should be."""
        values = {name: one for name, one in self.values().items() if not weights_only or name.count(" ") == 1}
        return [name for name, value in values.items() if not torch.equal(value, self._expected[name])]


def local(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
