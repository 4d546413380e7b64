"""Where a group of ranks lies: inside nodes or across, and what bandwidth that leaves each rank.

Ranks are laid out as the mesh is, pp outermost and tp innermost, and nodes take them in order. A group whose members
share nodes uses all their network ports together, as NCCL's rings do: with k members a node, k ports for the group, up
to the speed of the links inside. A group with one member a node has one port.
"""

from __future__ import annotations

from dataclasses import dataclass

from titan.config.layout import Degrees
from titan.plan.devices import Device
from titan.plan.facts import Dimension


@dataclass(frozen=True)
class Group:
    """One dimension of the mesh: group 0 as an example of all.

    Attributes:
        dimension: its name.
        ranks: global ranks of group 0.
        members: of a group in one node, where they are fewest.
        inside: whether every group stays within a node.
        bandwidth: bytes/s that each rank sends at, at best.
    """

    dimension: Dimension
    ranks: tuple[int, ...]
    members: int
    inside: bool
    bandwidth: float

    @property
    def size(self) -> int:
        return len(self.ranks)


def groups(degrees: Degrees, device: Device, per_node: int) -> dict[Dimension, Group]:
    """Every dimension with more than one rank, and the world."""
    strides = {"tp": 1, "cp": degrees.tp, "fsdp": degrees.tp}
    strides["dp_replicate"] = strides["fsdp"] * degrees.fsdp
    strides["pp"] = strides["dp_replicate"] * degrees.dp_replicate
    sizes = {"pp": degrees.pp, "dp_replicate": degrees.dp_replicate, "fsdp": degrees.fsdp}
    sizes |= {"cp": degrees.cp, "tp": degrees.tp}
    found = {
        name: _group(name, size, strides[name], degrees.world_size, device, per_node)  # type: ignore[arg-type]
        for name, size in sizes.items()
        if size > 1
    }
    if degrees.world_size > 1:
        found["world"] = _group("world", degrees.world_size, 1, degrees.world_size, device, per_node)
    return found  # type: ignore[return-value]


def _group(name: Dimension, size: int, stride: int, world: int, device: Device, per_node: int) -> Group:
    members = size
    inside = True
    for start in range(0, world, size * stride):
        for offset in range(stride):
            nodes: dict[int, int] = {}
            for place in range(size):
                node = (start + offset + place * stride) // per_node
                nodes[node] = nodes.get(node, 0) + 1
            if len(nodes) > 1:
                inside = False
                members = min(members, *nodes.values())
    bandwidth = device.link if inside else min(device.link, members * device.network)
    return Group(name, tuple(place * stride for place in range(size)), members, inside, bandwidth)


def nodes(degrees: Degrees, per_node: int) -> int:
    """How many nodes the world fills."""
    return -(-degrees.world_size // per_node)
