"""Groups of the mesh in nodes."""

from __future__ import annotations

import pytest

from titan.config import Degrees
from titan.plan.devices import DEVICES
from titan.plan.links import groups, nodes

pytestmark = pytest.mark.quick
H100 = DEVICES["h100"]


def test_the_405b_mesh_on_nodes_of_eight() -> None:
    found = groups(Degrees(pp=8, dp_shard=8, tp=8), H100, 8)
    assert set(found) == {"pp", "fsdp", "tp", "world"}
    assert found["tp"].ranks == tuple(range(8))
    assert found["fsdp"].ranks == tuple(range(0, 64, 8))
    assert found["pp"].ranks == tuple(range(0, 512, 64))
    assert (found["tp"].inside, found["tp"].bandwidth) == (True, H100.link)
    assert (found["fsdp"].inside, found["fsdp"].members, found["fsdp"].bandwidth) == (False, 1, H100.network)


def test_a_group_that_fills_its_nodes_has_all_their_ports() -> None:
    found = groups(Degrees(dp_shard=128), H100, 8)["fsdp"]
    assert (found.members, found.bandwidth) == (8, 8 * H100.network)
    assert groups(Degrees(dp_shard=8), H100, 8)["fsdp"].inside


def test_sharding_goes_over_context_parallel_ranks_too() -> None:
    found = groups(Degrees(dp_replicate=2, dp_shard=2, cp=2, tp=2), H100, 8)
    assert found["fsdp"].ranks == (0, 2, 4, 6)
    assert found["cp"].ranks == (0, 2)
    assert found["dp_replicate"].ranks == (0, 8)
    assert not found["dp_replicate"].inside


def test_a_group_is_judged_by_its_worst_place() -> None:
    assert not groups(Degrees(dp_shard=4, tp=6), H100, 8)["tp"].inside  # ranks 6 to 11 lie in two nodes


def test_nodes_of_a_world() -> None:
    assert nodes(Degrees(dp_shard=12), 8) == 2
    assert groups(Degrees(), H100, 8) == {}
