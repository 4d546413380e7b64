"""Predicted peaks against real runs: the allocator's record, on every pipeline rank, at layouts that put the peak in
different places.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.distributed.ranks import run_ranks
from tests.plan.layouts import MEMORY, SMALL, Layout, layout
from tests.plan.runs import config, measured_peaks
from titan.config import resolve
from titan.parallelisms.mesh import coordinates
from titan.plan.facts import Memory
from titan.plan.memory import memory

WITHIN = 0.05
TESTED = {
    1: ["one process, accumulation, bf16"],
    2: [
        "dp_shard 2, bf16, accumulation",
        "tp 2, checkpointing by operator, bf16",
        "cp 2, ring",
        "pp 2, 1F1B",
        "pp 2, ZBVZeroBubble",
    ],
}
"""The rest of the table is scripts/plan_check.py's, with a model of 227 MB."""


def shorter(one: Layout) -> Layout:
    return {**one, "training": {"seq_len": 128, **one.get("training", {})}}


def predicted(one: Layout, world: int, model: dict[str, Any] = SMALL) -> list[Memory]:
    return memory(resolve(config(one, model), world, "cpu"), device_type="cpu")


@pytest.mark.parametrize("world", TESTED)
def test_the_predicted_peak_is_that_of_a_real_run(world: int) -> None:
    measured = run_ranks(measured_peaks, world, [(shorter(MEMORY[name][1]), SMALL) for name in TESTED[world]])
    for number, name in enumerate(TESTED[world]):
        one = shorter(MEMORY[name][1])
        run = resolve(config(one, SMALL), world, "cpu")
        plan = predicted(one, world)
        for rank, found in enumerate(measured):
            stage = coordinates(rank, run.degrees)["pp"]
            assert plan[stage].peak == pytest.approx(found[number], rel=WITHIN), f"{name}, rank {rank}: {plan[stage]}"


def test_the_comparison_tells_neighbouring_layouts_apart() -> None:
    """A prediction that forgot checkpointing, the compute dtype, accumulation or a schedule's depth would be red."""
    plain = predicted(layout(dp_shard=2), 2)[0].peak
    for other in (
        layout("full", dp_shard=2),
        layout("op", dp_shard=2),
        layout(training={"mixed_precision_param": "bfloat16"}, dp_shard=2),
        layout(training={"local_batch_size": 2}, dp_shard=2),
    ):
        assert predicted(other, 2)[0].peak < (1 - 2 * WITHIN) * plain
    early, late = (predicted(layout(pp=2, pipeline_parallel_schedule=schedule), 2)[0] for schedule in ("1F1B", "GPipe"))
    assert early.peak < (1 - 2 * WITHIN) * late.peak


def test_the_items_name_everything_and_the_peak_says_where() -> None:
    found = predicted(layout(dp_shard=2), 2)[0]
    assert sum(found.items.values()) == found.peak
    named = {"parameters", "optimizer state", "logits and loss", "activations.attention", "activations.feed_forward"}
    assert named | {"activations.norm", "activations.gradients", "inputs"} <= set(found.items)
    assert found.where == "backward of microbatch 0, loss"
    assert found.detail["block 0, attention.attend"] > 0


def test_a_long_model_with_few_tokens_peaks_where_its_parameters_are() -> None:
    deep = {**SMALL, "n_layers": 24, "vocab_size": 512}
    few: Layout = {**layout(dp_shard=2), "training": {"seq_len": 16, "global_batch_size": 2}}
    found = predicted(few, 2, deep)[0]
    assert found.where.startswith(("backward of microbatch 0, layers.", "reduction of the gradients of layers."))
    assert not found.where.endswith(("layers.23", "loss"))  # as gradients come, not where activations are most
    static = sum(found.items[name] for name in ("parameters", "optimizer state", "gradients"))
    assert static > 0.9 * found.peak


def test_microbatches_in_flight_are_the_schedules() -> None:
    """1F1B holds pp - rank of them, GPipe all."""
    one = {**layout(pp=4), "training": {"global_batch_size": 8, "seq_len": 256}}
    deep = {**SMALL, "n_layers": 10, "vocab_size": 512}
    first, *_rest, last = predicted(one, 4, deep)
    kept = first.items["activations.feed_forward"] / last.items["activations.feed_forward"]
    assert kept == pytest.approx(4, rel=0.35)  # the ends hold a block less for their embedding and head


def test_cpu_offload_takes_shards_and_moments_off_the_device() -> None:
    one = layout(training={"enable_cpu_offload": True}, dp_shard=2)
    run = resolve(config(one, SMALL), 2, "cuda")
    on, off = memory(run, device_type="cpu")[0], memory(run, device_type="cuda")[0]
    assert "optimizer state" in on.items
    assert "optimizer state" not in off.items
    assert off.peak < on.peak


def test_a_compiled_block_keeps_all_until_the_weight_half() -> None:
    one = layout(pp=2, pipeline_parallel_schedule="ZBVZeroBubble")
    compiled = {**one, "compile": {"enable": True, "backend": "aot_eager"}}
    assert predicted(compiled, 2)[1].peak != predicted(one, 2)[1].peak
    by_operator = {**compiled, **layout("op"), "parallelism": one["parallelism"]}
    assert predicted(by_operator, 2)[1].peak < predicted(compiled, 2)[1].peak


@pytest.mark.quick
def test_an_accounts_highest_point_counts_what_comes_for_an_instant() -> None:
    from titan.plan.memory_account import Ledger

    ledger = Ledger()
    ledger.add("a", 10)
    ledger.note("one", {"b": 5})
    ledger.add("a", 2)
    ledger.note("two")
    assert (ledger.where, dict(ledger.peak)) == ("one", {"a": 10, "b": 5})
    assert math.isclose(ledger.now.total(), 12)


def test_a_norm_keeps_its_input_and_a_number_a_token() -> None:
    """Llama 3 8B, every second block checkpointed, on 8 H100: published at 82.4 GiB reserved (80.0 of it live here)."""
    one = {
        "model": {"flavor": "8B", "args": {}},
        "activation_checkpoint": {"mode": "selective", "selective_ac_option": "2"},
        "training": {"seq_len": 8192, "global_batch_size": 16, "mixed_precision_param": "bfloat16"},
        "parallelism": {"data_parallel_shard_degree": 8},
    }
    run = resolve(config(one, {}), 8, "cuda")
    written_out, fused = (memory(run, device_type=device)[0] for device in ("cpu", "cuda"))
    assert fused.peak == pytest.approx(80.0 * 2**30, rel=0.01)
    assert written_out.items["activations.norm"] == fused.items["activations.norm"]
    assert fused.detail["block 0, attention_norm"] < 1.1 * 2 * 2 * 8192 * 4096
