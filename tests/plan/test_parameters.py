"""The arithmetic of shards equals the real ones: `parallelize.build` over the fake backend, at many layouts and ranks.

A process takes one rank only: DTensor keeps what it has found out by mesh, and meshes of two ranks compare as equal.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.distributed.ranks import run_ranks
from tests.plan.runs import config
from titan.config import resolve
from titan.parallelisms import parallelize
from titan.parallelisms.mesh import coordinates
from titan.parallelisms.shards import local_tensor
from titan.plan.memory import play
from titan.plan.memory_account import OPTIMIZER, PARAMETERS
from titan.plan.parameters import fake_world, shard, stages_of, units

MODEL = {"dim": 48, "n_layers": 5, "n_heads": 8, "n_kv_heads": 2, "hidden_dim": 80, "vocab_size": 251}
LAYOUTS: dict[str, tuple[int, dict[str, int], dict[str, Any]]] = {
    "one process": (1, {}, {}),
    "uneven shards, some empty": (7, {"data_parallel_shard_degree": 7}, {}),
    "hsdp": (4, {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 2}, {}),
    "uneven vocabulary": (2, {"tensor_parallel_degree": 2}, {}),
    "tp beyond the kv heads": (4, {"tensor_parallel_degree": 4}, {}),
    "tied": (4, {"tensor_parallel_degree": 2, "data_parallel_shard_degree": 2}, {"tie_embeddings": True}),
    "fsdp over tp": (12, {"tensor_parallel_degree": 4, "data_parallel_shard_degree": 3}, {}),
    "cp shards too": (4, {"context_parallel_degree": 2, "data_parallel_shard_degree": 2}, {}),
    "tied over stages": (4, {"pipeline_parallel_degree": 2, "data_parallel_shard_degree": 2}, {"tie_embeddings": True}),
    "all at once": (
        32,
        {
            "pipeline_parallel_degree": 2,
            "data_parallel_replicate_degree": 2,
            "data_parallel_shard_degree": 2,
            "context_parallel_degree": 2,
            "tensor_parallel_degree": 2,
        },
        {},
    ),
}


def resolved(world: int, degrees: dict[str, int], model: dict[str, Any]) -> Any:
    layout = {"parallelism": degrees, "training": {"global_batch_size": 84, "seq_len": 32}}
    return resolve(config(layout, {**MODEL, **model}), world, "cpu")


def built_shapes(run: Any, rank: int) -> list[tuple[str, tuple[int, ...]]]:
    """(FQN, local shape) of the parameters that a rank really builds."""
    sections = run.config
    with fake_world(run.degrees, rank) as mesh:
        assembly = parallelize.build(
            run.spec,
            run.model_args,
            batch=run.batch,
            training=sections.training,
            parallelism=sections.parallelism,
            activation_checkpoint=sections.activation_checkpoint,
            compile=sections.compile,
            mesh=mesh,
            device=torch.device("cpu"),
            seed=1,
            log=lambda line: None,
        )
        return sorted((named.fqn, tuple(local_tensor(named.parameter).shape)) for named in assembly.parameters)


def differences(position: str) -> list[str]:
    """Layouts at which the arithmetic and the build differ for the first, the middle or the last rank."""
    found = []
    for name, (world, degrees, model) in LAYOUTS.items():
        run, rank = resolved(world, degrees, model), {"first": 0, "middle": world // 2, "last": world - 1}[position]
        built, planned = built_shapes(run, rank), planned_shapes(run, rank)
        if built != planned or len(built) < 3:
            found.append(f"{name}, rank {rank}: built {built}, planned {planned}")
    return found


def planned_shapes(run: Any, rank: int) -> list[tuple[str, tuple[int, ...]]]:
    place, plan = coordinates(rank, run.degrees), stages_of(run)
    fsdp_rank = place["dp_shard"] * run.degrees.cp + place["cp"]
    canonical = {second: first for first, second in run.spec.tied(run.model_args)}
    return sorted(
        (canonical.get(fqn, fqn), shard(shape, run.degrees.fsdp, fsdp_rank))
        for stage in plan.of(place["pp"])
        for unit in units(run.spec, run.model_args, plan.modules[stage], tp=run.degrees.tp, tp_rank=place["tp"])
        for fqn, shape in unit.shapes
    )


@pytest.mark.parametrize("position", ["first", "middle", "last"])
def test_shapes_are_those_of_the_real_shards_on_every_kind_of_rank(position: str) -> None:
    assert run_ranks(differences, 1, position, fresh=True) == [[]]


@pytest.mark.parametrize("name", ["one process", "hsdp", "tied over stages", "tp beyond the kv heads"])
def test_bytes_of_parameters_and_moments_are_exact(name: str) -> None:
    world, degrees, model = LAYOUTS[name]
    run = resolved(world, degrees, model)
    for step in play(run, device_type="cpu"):
        rank = step.rank * (world // run.degrees.pp)  # the first of this pipeline rank, whose shards are the largest
        shapes = built_shapes(run, rank)
        bytes_of = 4 * sum(math.prod(shape) for _fqn, shape in shapes)
        assert step.ledger.now[PARAMETERS] == bytes_of
        assert step.ledger.now[OPTIMIZER] == 2 * bytes_of + 4 * len(shapes)


@pytest.mark.quick
def test_a_plan_leaves_no_process_group_and_refuses_one_of_others() -> None:
    run = resolved(*LAYOUTS["uneven vocabulary"])
    units(run.spec, run.model_args, stages_of(run).modules[0], tp=2)
    assert not dist.is_initialized()
    with (
        fake_world(run.degrees),
        pytest.raises(RuntimeError, match=r"outside of a training process"),
        fake_world(run.degrees),
    ):
        raise AssertionError("a second world was made")
    assert not dist.is_initialized()
