"""What ranks agree on in a real group: the seed that nobody gave, and a timeout that bites after it is set."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.distributed.ranks import run_ranks
from titan.runtime import World, agree_on_seed, set_timeout


def _agree() -> list[int]:
    world = World(dist.get_rank(), dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    return [agree_on_seed(None, world), agree_on_seed(None, world), agree_on_seed(5, world)]


def _wait_for_a_peer_that_sleeps() -> float:
    group = dist.new_group()
    set_timeout(1, [group])
    dist.group.WORLD.set_timeout(timedelta(seconds=60))  # the barrier that ends a case is none of this test's
    began = time.monotonic()
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match=r"(?i)time"):
            dist.all_reduce(torch.ones(1), group=group)
        return time.monotonic() - began
    time.sleep(4)
    return 0.0


def _sleep_less_than_the_timeout() -> float:
    set_timeout(30)
    time.sleep(2.0 * dist.get_rank())
    value = torch.ones(1)
    dist.all_reduce(value)
    return float(value)


def test_seed_that_nobody_gave_is_one_for_all_ranks():
    first, second = run_ranks(_agree, 2)
    assert first == second
    assert first[0] != first[1]
    assert first[2] == 5


def test_timeout_set_after_the_first_step_bites_in_every_group_given():
    waited = run_ranks(_wait_for_a_peer_that_sleeps, 2, fresh=True)
    assert 0.5 < waited[0] < 3.5


def test_slow_peer_within_the_timeout_is_waited_for():
    assert run_ranks(_sleep_less_than_the_timeout, 2) == [2.0, 2.0]
