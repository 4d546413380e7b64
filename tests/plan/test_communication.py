"""Predicted traffic equals what a hook on torch.distributed counts in real steps: calls and bytes, on every rank."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.distributed.ranks import run_ranks
from tests.plan.layouts import TINY, TRAFFIC, Layout, layout
from tests.plan.runs import config, counted_steps
from titan.config import resolve
from titan.plan.communication import communication
from titan.plan.facts import Traffic

MODELS = {"pp 2, 1F1B, tied": {**TINY, "tie_embeddings": True}}
Total = Counter[tuple[str, str]]
"""(operation, ranks of the group) to a number. Dimensions of the same ranks, as cp and fsdp without dp, are one."""


def model_of(name: str) -> dict[str, Any]:
    return MODELS.get(name, TINY)


def short(one: Layout) -> Layout:
    return {**one, "training": {"seq_len": 32, **one.get("training", {})}}


def predicted(name: str, found: dict[str, Any]) -> tuple[Total, Total]:
    """Calls and bytes of the pipeline rank that counted `found`."""
    world, one = TRAFFIC[name]
    groups = {**found["groups"], "world": every(world)}
    calls, sizes = Total(), Total()
    for line in communication(resolve(config(short(one), model_of(name)), world, "cpu"), device_type="cpu"):
        if line.rank == found["pp_rank"]:
            ranks = groups[line.dimension]
            # FSDP makes a group of its own where it reshards over fewer ranks.
            key = line.operation, ranks if len(ranks.split(",")) == line.group_size else f"{line.group_size} ranks"
            calls[key] += line.calls
            sizes[key] += line.bytes
    return calls, sizes


def real(world: int, found: dict[str, Any]) -> tuple[Total, Total]:
    """Calls and bytes."""
    known = {*found["groups"].values(), every(world)}
    calls, sizes = Total(), Total()
    for (operation, ranks, size), count in found["counts"].items():
        key = operation, ranks if ranks in known else f"{len(ranks.split(','))} ranks"
        calls[key] += count
        sizes[key] += count * size
    return calls, sizes


def every(world: int) -> str:
    return ",".join(map(str, range(world)))


@pytest.mark.parametrize("world", [2, 4])
def test_calls_and_bytes_are_exact_on_every_rank(world: int) -> None:
    names = [name for name, (ranks, _one) in TRAFFIC.items() if ranks == world]
    cases = [(short(TRAFFIC[name][1]), model_of(name)) for name in names]
    for rank, found in enumerate(run_ranks(counted_steps, world, cases)):
        for name, one in zip(names, found, strict=True):
            assert real(world, one) == predicted(name, one), f"{name}, rank {rank}"


@pytest.mark.parametrize("name", ["dp_shard 2", "tp 2"])
def test_calls_are_those_of_torchs_own_debug_mode(name: str) -> None:
    one = short(layout(dp_shard=2) if name == "dp_shard 2" else layout(tp=2))
    found = run_ranks(counted_steps, 2, [(one, TINY)], debug_mode=True)[0][0]["torch"]
    lines = communication(resolve(config(one, TINY), 2, "cpu"), device_type="cpu")
    calls = Counter[str]()
    for line in lines:
        calls[line.operation] += line.calls
    torch_names = {"allgather": "all_gather", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter"}
    torch_names |= {"allreduce": "all_reduce", "all_reduce": "all_reduce"}
    seen = Counter[str]()
    for operator, count in found.items():
        # It counts all-reduces over one rank too: FSDP's over dp_replicate, one a unit.
        seen[next(word for name, word in torch_names.items() if name in operator)] += count
    assert seen - calls == Counter(all_reduce=6)
    assert calls - seen == Counter()


@pytest.mark.quick
def test_the_wire_carries_what_the_ring_algorithm_says() -> None:
    def line(operation: Any, size: int) -> Traffic:
        return Traffic(0, "fsdp", operation, "parameters", 4, 1, size, False)

    assert line("all_gather", 400).wire_bytes == 300
    assert line("all_reduce", 400).wire_bytes == 600
    assert line("send", 400).wire_bytes == 400
