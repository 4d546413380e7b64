"""One flat world of ranks, seen under the names that the code asks for.

The order from outermost to innermost is pp, dp_replicate, dp_shard, cp, tp: tp talks most and sits on neighbouring
ranks. FSDP shards over `fsdp = dp_shard x cp`, since cp ranks hold different tokens of the same model. The views
are made with `_unflatten` of the flat mesh, because slicing a dimension made by `_flatten` is deprecated; it is a
private method, used here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from titan.config.layout import Degrees


@dataclass(frozen=True)
class Mesh:
    """The named views of the world and this rank's place in it.

    Attributes:
        degrees: sizes of the dimensions.
        fsdp: 2-D mesh (dp_replicate, fsdp) that `fully_shard` takes, also where both are 1.
        tp, pp, cp: 1-D meshes, one each (of size 1 where not used); they share a root with `fsdp`, except cp.
        batch_rank: which slice of a step's rows this rank reads.
        cp_rank, pp_rank, tp_rank: coordinates.
    """

    degrees: Degrees
    fsdp: DeviceMesh
    tp: DeviceMesh
    pp: DeviceMesh
    cp: DeviceMesh | None
    batch_rank: int
    cp_rank: int
    pp_rank: int
    tp_rank: int

    @property
    def groups(self) -> list[dist.ProcessGroup]:
        """The process group of every dimension."""
        found = [*self.fsdp.get_all_groups(), self.tp.get_group(), self.pp.get_group()]
        return found if self.cp is None else [*found, self.cp.get_group()]


def coordinates(rank: int, degrees: Degrees) -> dict[str, int]:
    """Place of a rank on each dimension, by name."""
    place = {}
    for name in ("tp", "cp", "dp_shard", "dp_replicate", "pp"):
        rank, place[name] = divmod(rank, getattr(degrees, name))
    return place


def build(degrees: Degrees, device_type: str) -> Mesh:
    """Makes the views; a collective call. The default process group must hold exactly `degrees.world_size` ranks."""
    if dist.get_world_size() != degrees.world_size:
        raise ValueError(
            f"the degrees ({degrees}) ask for {degrees.world_size} processes, the group has {dist.get_world_size()}"
        )
    flat = init_device_mesh(device_type, (degrees.world_size,), mesh_dim_names=("world",))
    root = flat._unflatten(
        0,
        (degrees.pp, degrees.dp_replicate, degrees.fsdp, degrees.tp),
        ("pp", "dp_replicate", "fsdp", "tp"),
    )
    cp = None
    if degrees.cp > 1:
        outer = degrees.pp * degrees.batch
        cp = flat._unflatten(0, (outer, degrees.cp, degrees.tp), ("outer", "cp", "inner"))["cp"]
    place = coordinates(dist.get_rank(), degrees)
    return Mesh(
        degrees=degrees,
        fsdp=root["dp_replicate", "fsdp"],
        tp=root["tp"],
        pp=root["pp"],
        cp=cp,
        batch_rank=place["dp_replicate"] * degrees.dp_shard + place["dp_shard"],
        cp_rank=place["cp"],
        pp_rank=place["pp"],
        tp_rank=place["tp"],
    )
