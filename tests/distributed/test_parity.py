"""Every layout trains like the oracle: loss, grad norm, each gradient over three steps, and the weights after them,
to 1e-5.

The oracle is a plain loop that shares no code with the trainer (tests/oracle.py); it gets the weights that the first
case gathered, which must be bit-identical in every other. Rows have uneven valid tokens, one row has none. A parity
test must be seen to fail: faults are injected at the end, and each must turn it red.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import torch

from tests import oracle
from tests.distributed import tiny
from tests.distributed.ranks import run_ranks
from titan.optim import factor

TOLERANCE = 1e-5
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
SHORT = {
    "dp_shard": "data_parallel_shard_degree",
    "dp_replicate": "data_parallel_replicate_degree",
    "tp": "tensor_parallel_degree",
    "cp": "context_parallel_degree",
    "pp": "pipeline_parallel_degree",
    "schedule": "pipeline_parallel_schedule",
    "method": "context_parallel_rotate_method",
    "balance": "context_parallel_load_balancer",
    "reshard": "fsdp_reshard_after_forward",
    "microbatch": "pipeline_parallel_microbatch_size",
}
DEGREES = ("dp_shard", "dp_replicate", "tp", "cp", "pp")


def layout(text: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """`tp=2,schedule=GPipe,args.n_layers=8` to the world size and the overrides."""
    sections: dict[str, dict[str, Any]] = {"parallelism": {}}
    size = 1
    for item in filter(None, text.split(",")):
        key, value = item.split("=")
        parsed = _value(value)
        if key in DEGREES:
            size *= parsed
        if key in SHORT:
            sections["parallelism"][SHORT[key]] = parsed
        elif key.startswith("args."):
            sections.setdefault("model", {}).setdefault("args", {})[key[5:]] = parsed
        else:
            section, name = key.split(".")
            sections.setdefault(section, {})[name] = parsed
    return size, sections


def _value(text: str) -> Any:
    for convert in (int, float):
        with suppress(ValueError):
            return convert(text)
    return {"true": True, "false": False}.get(text, text)


@cache
def expected(shape: tuple[tuple[str, Any], ...], max_norm: float) -> tuple[dict[str, torch.Tensor], Any, Any]:
    """First weights (from a one-process trainer), the oracle's records, its last weights."""
    sections = {"model": {"args": dict(shape)}, "training": {"max_norm": max_norm}}
    settings = tiny.config(sections)
    args = settings.model.args
    weights = tiny.whole([run_ranks(tiny.first_weights, 1, sections)[0]])
    rates = [settings.optimizer.lr * factor(step + 1, settings.lr_scheduler, tiny.STEPS) for step in range(tiny.STEPS)]
    records, last = oracle.train(
        weights,
        tiny.rows_of(tiny.STEPS),
        lr=rates,
        max_norm=max_norm,
        eps=tiny.EPS,
        n_layers=args["n_layers"],
        n_heads=args["n_heads"],
        n_kv_heads=args["n_kv_heads"],
    )
    return weights, records, last


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found - wanted).norm() / wanted.norm()).item()


def differences(sections: dict[str, dict[str, Any]], results: list[dict[str, Any]]) -> dict[str, float]:
    """The largest relative difference to the oracle of each kind; 0 under `first` means bit-identical initial
    weights.
    """
    shape = tuple(sorted(sections.get("model", {}).get("args", {}).items()))
    weights, records, last = expected(shape, sections.get("training", {}).get("max_norm", 1.0))
    first = tiny.whole([result["first"] for result in results])
    assert set(first) == set(weights)
    found = {"first": float(not all(torch.equal(first[name], weights[name]) for name in weights))}
    for step, record in enumerate(records):
        grads = tiny.whole([result["records"][step]["grads"] for result in results])
        assert set(grads) == set(record["grads"])
        for result in results:
            for key in ("loss", "grad_norm"):
                error = abs(result["records"][step][key] / record[key] - 1)
                found[key] = max(found.get(key, 0.0), error)
        worst = max(relative(grads[name], record["grads"][name]) for name in grads)
        found["grads"] = max(found.get("grads", 0.0), worst)
    trained = tiny.whole([result["last"] for result in results])
    found["weights"] = max(relative(trained[name], last[name]) for name in last)
    return found


def check(text: str, fault: str | None = None) -> dict[str, float]:
    size, sections = layout(text)
    results = run_ranks(tiny.run_layout, size, sections, fault)
    tokens = tiny.GLOBAL_ROWS * tiny.SEQ * tiny.STEPS
    assert {result["tokens"] for result in results} == {tokens}, "tokens are counted once, whatever the degrees"
    return differences(sections, results)


PLAIN = [
    "",
    "training.local_batch_size=4",
    "training.local_batch_size=1",
    "args.tie_embeddings=true",
    "activation_checkpoint.mode=full",
    "activation_checkpoint.mode=selective",
    "training.max_norm=inf",
    "training.max_norm=0.01",
]
DATA = [
    "dp_shard=2",
    "dp_shard=4",
    "dp_shard=2,reshard=always",
    "dp_shard=4,reshard=2",
    "dp_shard=2,reshard=never,training.local_batch_size=2",
    "dp_replicate=2",
    "dp_replicate=4",
    "dp_replicate=2,training.local_batch_size=2",
    "dp_replicate=2,dp_shard=2",
    "dp_replicate=2,dp_shard=2,training.local_batch_size=1,training.max_norm=0.01",
    "dp_shard=2,args.tie_embeddings=true",
    "dp_shard=4,args.dim=60,args.n_heads=6,args.n_kv_heads=3,args.head_dim=10",
    "dp_shard=2,activation_checkpoint.mode=selective,activation_checkpoint.selective_ac_option=op",
]
TENSOR = [
    "tp=2",
    "tp=4",
    "tp=2,dp_shard=2",
    "tp=2,dp_replicate=2",
    "tp=4,dp_shard=2",
    "tp=2,args.tie_embeddings=true",
    "tp=2,dp_shard=2,args.tie_embeddings=true,training.local_batch_size=2",
    "tp=2,parallelism.disable_loss_parallel=true",
    "tp=2,args.dim=96,args.n_heads=6,args.n_kv_heads=3",
    "tp=2,training.max_norm=0.01,activation_checkpoint.mode=full",
]
CONTEXT = [
    *(f"cp=2,method={method}" for method in ("allgather", "alltoall", "ulysses")),
    *(f"cp=2,method={method},balance=none" for method in ("allgather", "alltoall", "ulysses")),
    "cp=4,method=allgather",
    "cp=4,method=alltoall",
    "cp=4,method=ulysses",
    "cp=2,dp_shard=2",
    "cp=2,dp_replicate=2,method=alltoall",
    "cp=2,tp=2,method=alltoall",
    "cp=2,tp=2,method=ulysses",
    "cp=2,training.local_batch_size=2,activation_checkpoint.mode=full",
]
DEEP = "args.n_layers=8"
PIPELINE = [
    *(f"pp=2,schedule={schedule}" for schedule in SCHEDULES),
    *(f"pp=4,schedule={schedule},{DEEP}" for schedule in SCHEDULES),
    *(f"pp=2,dp_shard=2,schedule={schedule}" for schedule in SCHEDULES),
    *(f"pp=2,dp_replicate=2,schedule={schedule}" for schedule in SCHEDULES),
    *(f"pp=2,tp=2,schedule={schedule}" for schedule in ("1F1B", "Interleaved1F1B", "ZBVZeroBubble")),
    *(f"pp=2,cp=2,schedule={schedule}" for schedule in ("1F1B", "DualPipeV")),
    *(
        f"pp=2,schedule={schedule},args.tie_embeddings=true"
        for schedule in ("1F1B", "Interleaved1F1B", "ZBVZeroBubble")
    ),
    "pp=2,dp_shard=2,schedule=1F1B,args.tie_embeddings=true,training.max_norm=0.01",
    "pp=2,tp=2,schedule=DualPipeV,args.tie_embeddings=true",
    "pp=2,schedule=1F1B,training.local_batch_size=4",
    "pp=2,dp_shard=2,schedule=ZBVZeroBubble,training.local_batch_size=2",
    "pp=2,schedule=1F1B,microbatch=2",
    "pp=2,schedule=1F1B,reshard=always,dp_shard=2",
    "pp=2,args.n_layers=5",
    "pp=2,schedule=Interleaved1F1B,activation_checkpoint.mode=full",
    "pp=2,schedule=ZBVZeroBubble,activation_checkpoint.mode=full",
]
EIGHT = [
    "pp=2,dp_shard=2,tp=2,schedule=1F1B",
    "pp=2,dp_shard=2,tp=2,schedule=ZBVZeroBubble",
    "dp_replicate=2,dp_shard=2,tp=2",
    "pp=2,cp=2,tp=2,schedule=InterleavedZeroBubble",
    "pp=2,dp_replicate=2,dp_shard=2,schedule=Interleaved1F1B",
]


@pytest.mark.parametrize(
    "text", [*PLAIN, *DATA, *TENSOR, *CONTEXT, *PIPELINE, *EIGHT], ids=lambda text: text or "one process"
)
def test_layout_trains_like_the_oracle(text: str) -> None:
    found = check(text)
    assert found["first"] == 0.0, "initial weights differ"
    assert max(found.values()) < TOLERANCE, found


FAULTS = ("wrong divide factor", "skipped reduction", "norm counted twice", "swapped row")


@pytest.mark.parametrize("fault", FAULTS)
def test_parity_turns_red_under_a_fault(fault: str) -> None:
    found = check("dp_shard=2", fault)
    assert max(found.values()) > 100 * TOLERANCE, found
