"""Every layout trains like the oracle: loss, grad norm, each gradient over three steps, and the weights after them,
to 1e-5.

The oracle is a plain loop (titan/parity/oracle.py) over a plain Llama (tests/oracle.py), which share no code with the
trainer; it gets the weights that the first case gathered, which must be bit-identical in every other. Rows have uneven
valid tokens, one row has none. A parity test must be seen to fail: faults are injected at the end, and each must turn
it red.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed import tiny
from tests.distributed.ranks import run_ranks
from tests.oracle import llama
from titan.parity.faults import NAMES, Fault
from titan.parity.layouts import ALONE, parse
from titan.parity.measure import judge
from titan.parity.record import INITIAL, LAST, Record, gradients
from titan.parity.verdict import Compared, Differences, Measured, OracleRun
from titan.parity.verdict import differences as joined

TOLERANCE = 1e-5
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")


def layout(text: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """`tp=2,schedule=GPipe,args.n_layers=8` to the world size and the overrides."""
    (found,) = parse([text.replace("args.", "model.args.") or ALONE])
    sections: dict[str, dict[str, Any]] = {}
    for key, value in found.settings:
        *path, name = key.split(".")
        table = sections
        for part in path:
            table = table.setdefault(part, {})
        table[name] = _value(value)
    return found.world_size, sections


def _value(text: str) -> Any:
    for convert in (int, float):
        with suppress(ValueError):
            return convert(text)
    return {"true": True, "false": False}.get(text, text)


_folder = tempfile.TemporaryDirectory()


@cache
def expected(shape: tuple[tuple[str, Any], ...], max_norm: float) -> tuple[Record, OracleRun]:
    """The oracle's run from the first weights of a one-process trainer, and the noise of it."""
    sections = {"model": {"args": dict(shape)}, "training": {"max_norm": max_norm}}
    settings = tiny.config(sections)
    shape_of = {key: settings.model.args[key] for key in ("n_layers", "n_heads", "n_kv_heads")}
    weights = tiny.whole([run_ranks(tiny.first_weights, 1, sections)[0]])
    record = Record(Path(tempfile.mkdtemp(dir=_folder.name)))
    return record, judge(settings, partial(llama, **shape_of), weights, tiny.rows_of(tiny.STEPS), record)


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found - wanted).norm() / wanted.norm()).item()


def measured(record: Record, result: dict[str, Any]) -> Measured:
    """What a rank of `tiny.run_layout` returned, beside the oracle's record."""

    def compared(name: str, pieces: list[Any]) -> list[Compared]:
        shards = [(fqn, torch.Size(shape), box, torch.from_numpy(values)) for fqn, shape, box, values in pieces]
        return record.compare(name, shards)

    steps = list(enumerate(result["records"], 1))
    return Measured(
        [(step["loss"], step["grad_norm"]) for _number, step in steps],
        compared(INITIAL, result["first"]),
        [compared(gradients(number), step["grads"]) for number, step in steps],
        compared(LAST, result["last"]),
        result["tokens"],
    )


def differences(sections: dict[str, dict[str, Any]], results: list[dict[str, Any]]) -> dict[str, float]:
    """The largest relative difference to the oracle of each kind; 0 under `first` means bit-identical initial
    weights.
    """
    shape = tuple(sorted(sections.get("model", {}).get("args", {}).items()))
    record, run = expected(shape, sections.get("training", {}).get("max_norm", 1.0))
    return largest(joined(run, [measured(record, result) for result in results]))


def largest(found: Differences) -> dict[str, float]:
    return {
        "first": float(not found.initial),
        "loss": found.loss,
        "grad_norm": found.grad_norm,
        "grads": max(found.gradients.values()),
        "weights": max(found.weights.values()),
    }


def check(text: str, fault: Fault | None = None) -> dict[str, float]:
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
    *(f"cp=2,rotate={method}" for method in ("allgather", "alltoall", "ulysses")),
    *(f"cp=2,rotate={method},balance=none" for method in ("allgather", "alltoall", "ulysses")),
    "cp=4,rotate=allgather",
    "cp=4,rotate=alltoall",
    "cp=4,rotate=ulysses",
    "cp=2,dp_shard=2",
    "cp=2,dp_replicate=2,rotate=alltoall",
    "cp=2,tp=2,rotate=alltoall",
    "cp=2,tp=2,rotate=ulysses",
    "cp=2,training.local_batch_size=2,activation_checkpoint.mode=full",
]
DEEP = "args.n_layers=8"
PIPELINE = [
    *(f"pp=2,schedule={schedule}" for schedule in SCHEDULES),
    *(f"pp=4,schedule={schedule},{DEEP}" for schedule in SCHEDULES),
    *(f"pp=2,dp_shard=2,schedule={schedule}" for schedule in SCHEDULES),
    *(f"pp=2,dp_replicate=2,schedule={schedule}" for schedule in SCHEDULES),
    *(f"pp=2,tp=2,microbatch=2,schedule={schedule}" for schedule in ("1F1B", "Interleaved1F1B", "ZBVZeroBubble")),
    *(f"pp=2,cp=2,schedule={schedule}" for schedule in ("1F1B", "DualPipeV")),
    *(
        f"pp=2,schedule={schedule},args.tie_embeddings=true"
        for schedule in ("1F1B", "Interleaved1F1B", "ZBVZeroBubble")
    ),
    "pp=2,dp_shard=2,schedule=1F1B,args.tie_embeddings=true,training.max_norm=0.01",
    "pp=2,tp=2,microbatch=2,schedule=DualPipeV,args.tie_embeddings=true",
    "pp=2,schedule=1F1B,training.local_batch_size=4",
    "pp=2,dp_shard=2,schedule=ZBVZeroBubble,training.local_batch_size=2",
    "pp=2,schedule=1F1B,microbatch=2",
    "pp=2,schedule=1F1B,reshard=always,dp_shard=2",
    "pp=2,args.n_layers=5",
    "pp=2,schedule=Interleaved1F1B,activation_checkpoint.mode=full",
    "pp=2,schedule=ZBVZeroBubble,activation_checkpoint.mode=full",
]
EIGHT = [
    "pp=2,dp_shard=2,tp=2,schedule=ZBVZeroBubble",
    "pp=2,dp_replicate=2,dp_shard=2,schedule=Interleaved1F1B",
    *(
        pytest.param(text, marks=pytest.mark.full, id=text)
        for text in (
            "pp=2,dp_shard=2,tp=2,schedule=1F1B",
            "dp_replicate=2,dp_shard=2,tp=2",
            "pp=2,cp=2,tp=2,microbatch=2,schedule=InterleavedZeroBubble",
        )
    ),
]


@pytest.mark.parametrize(
    "text", [*PLAIN, *DATA, *TENSOR, *CONTEXT, *PIPELINE, *EIGHT], ids=lambda text: text or "one process"
)
def test_layout_trains_like_the_oracle(text: str) -> None:
    found = check(text)
    assert found["first"] == 0.0, "initial weights differ"
    assert max(found.values()) < TOLERANCE, found


@pytest.mark.parametrize("fault", NAMES)
def test_parity_turns_red_under_a_fault(fault: Fault) -> None:
    found = check("dp_shard=2", fault)
    assert max(found.values()) > 100 * TOLERANCE, found
