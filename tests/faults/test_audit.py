"""One changed value on one replica is found and named, whichever axis replicates it; equal replicas pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.distributed import tiny
from tests.distributed.ranks import run_ranks
from tests.distributed.test_parity import layout
from titan.faults.audit import ReplicasDiffer, differences, tensor_hash
from titan.runtime import StopRequest

HSDP, TIED = "dp_replicate=2,tp=2", "pp=2,args.tie_embeddings=true"


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_any_changed_value_and_any_swap_changes_the_hash(dtype: torch.dtype) -> None:
    values = torch.arange(1, 65).to(dtype).reshape(8, 8)
    base = tensor_hash(values)
    assert base == tensor_hash(values.clone())
    for place in range(64) if dtype != torch.bool else (0, 31, 63):
        other = values.clone()
        other.view(-1)[place] = 0
        assert tensor_hash(other) != base
    if dtype != torch.bool:
        assert tensor_hash(values.flip(0)) != base
    assert tensor_hash(torch.zeros(0, dtype=dtype)) == 0


@pytest.mark.quick
def test_minus_zero_is_not_zero() -> None:
    assert tensor_hash(torch.tensor([0.0])) != tensor_hash(torch.tensor([-0.0]))


@pytest.mark.quick
def test_the_minority_is_named_and_a_tie_names_all() -> None:
    same = {"w [0:4]": [1], "rows": [8]}
    assert differences([same, same, same]) == []
    assert differences([same, {**same, "w [0:4]": [2]}, same]) == ["w [0:4] on rank 1 is not that of ranks 0, 2"]
    assert differences([same, {**same, "rows": [9]}]) == ["rows is not the same on ranks 0, 1"]
    assert differences([{"a": [1]}, {"b": [2]}]) == [], "what one rank holds alone is compared with nothing"
    assert differences([{"tied": [1, 2]}, {"x": [0]}]) == ["tied is not the same on ranks 0"]


def _flip(sections: dict[str, dict[str, Any]], rank: int, what: str, fqn: str) -> str | None:
    """Trains with an audit each step and changes one value on one rank after the second; the error."""
    sections = {**sections, "debug": {"seed": 7, "replica_audit_freq": 1}, "metrics": {"enable_jsonl": False}}
    trainer = tiny.make_trainer(tiny.config(sections))
    update = trainer.update

    def spoilt(norm: torch.Tensor) -> float:
        rate: float = update(norm)
        if trainer.progress.step == 2 and trainer.world.rank == rank:
            for named in trainer.model.parameters:
                if named.fqn == fqn:
                    state = trainer.optimizer.state[named.parameter]
                    tensor = named.parameter.detach() if what == "weight" else state["exp_avg"]
                    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
                    local.view(-1)[0] += 1e-3
            if what == "generator":
                torch.rand(1)
            if what == "rows":
                trainer.progress.rows += 1
        return rate

    trainer.update = spoilt
    try:
        trainer.train(StopRequest())
    except ReplicasDiffer as error:
        return str(error)
    finally:
        torch.manual_seed(0)
    return None


@pytest.mark.parametrize(
    ("text", "rank", "what", "fqn", "said"),
    [
        (HSDP, 2, "weight", "layers.1.attention.wq.weight", "[0:32, 0:64] is not the same on ranks 0, 2"),
        (HSDP, 3, "weight", "layers.0.ffn_norm.weight", "[0:64] on rank 3 is not that of ranks 0, 1, 2"),
        (TIED, 1, "moment", "tok_embeddings.weight", "[0:251, 0:64] is not the same on ranks 0, 1"),
        ("dp_shard=2", 1, "generator", "", "random generator of the CPU is not the same on ranks 0, 1"),
        ("dp_shard=2,tp=2", 1, "rows", "", "rows on rank 1 is not that of ranks 0, 2, 3"),
    ],
)
def test_a_value_that_differs_on_one_replica_ends_the_run_and_is_named(
    text: str, rank: int, what: str, fqn: str, said: str
) -> None:
    size, sections = layout(text)
    errors = run_ranks(_flip, size, sections, rank, what, fqn)
    assert set(errors) == {errors[0]}, "all ranks know"
    name = {"weight": f"{fqn} ", "moment": f"optimizer exp_avg of {fqn} "}.get(what, "")
    assert errors[0].startswith("step 2: replicas differ: ")
    assert f"{name}{said}" in errors[0], errors[0]


def test_equal_replicas_pass() -> None:
    size, sections = layout("dp_replicate=2,pp=2,args.tie_embeddings=true")
    assert run_ranks(_flip, size, sections, -1, "nothing", "") == [None] * size
