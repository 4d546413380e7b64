"""A slow rank is named with its stage and by how much; its waits for others and theirs for it are not in its time."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from tests.distributed import tiny
from tests.distributed.ranks import run_ranks
from tests.distributed.test_parity import layout
from titan.faults import stragglers
from titan.faults.stragglers import RankTimes, Stragglers, metrics


@pytest.mark.quick
def test_slow_twice_in_a_row_is_slow_and_once_is_noise() -> None:
    slow, usual = RankTimes([1.0, 1.0, 3.0, 1.1], [0.0] * 4), RankTimes([1.0, 1.4, 1.0, 1.1], [0.0] * 4)
    teller = Stragglers(1.5, stages=[0, 0, 1, 1])
    assert [teller.warning(step, times) for step, times in ((1, slow), (2, usual), (3, slow))] == [None] * 3
    said = "step 4: rank 2 (pipeline rank 1) is slow: 3000.00 ms a block, 3.0 times the median of 1000.00 ms"
    assert teller.warning(4, slow) == said


@pytest.mark.quick
def test_two_ranks_are_compared_with_the_faster_one() -> None:
    values = metrics(RankTimes([2.0, 1.0], [0.1, 0.4]))
    assert values == {"block_seconds": 1.0, "slowest_rank": 0, "slowest_ratio": 2.0, "data_seconds": 0.4}


@torch._dynamo.disable
def _sleep(*_: Any) -> None:
    time.sleep(0.02)


def _slow(sections: dict[str, dict[str, Any]], rank: int) -> list[dict[str, Any]]:
    """Steps in which one rank sleeps in its blocks' forward; what each step measured."""
    trainer = tiny.make_trainer(tiny.config(sections))
    if trainer.world.rank == rank:
        for block in stragglers.blocks_of(trainer.model.parts, "layers"):
            block.register_forward_pre_hook(_sleep)
    found = []
    for _ in range(2):
        data = next(trainer.loader)
        valid, _stop = trainer.open_step(data)
        trainer.times.active = True
        share = trainer.forward_backward(data, valid)
        trainer.update(trainer.norm(share))
        found.append(metrics(stragglers.gather(trainer.times.read(), 0.0, torch.device("cpu"))))
    trainer.loader.close()
    trainer.checkpoints.close()
    return found


@pytest.mark.parametrize(
    "text", ["dp_shard=2,pp=2", "dp_shard=2,reshard=always,compile.enable=true,compile.backend=aot_eager"]
)
def test_the_rank_that_sleeps_in_its_blocks_is_the_slowest(text: str) -> None:
    size, sections = layout(text)
    for found in run_ranks(_slow, size, sections, size - 1):
        assert found[1]["slowest_rank"] == size - 1
        assert found[1]["slowest_ratio"] > 2
