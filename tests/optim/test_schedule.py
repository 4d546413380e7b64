"""The learning rate of each step: its formula at the edges, where schedules of real trainers go wrong."""

from __future__ import annotations

import math

import pytest
import torch

from titan.config.schema import LRScheduler
from titan.optim import LRSchedule, factor

pytestmark = pytest.mark.quick


def curve(steps: int, **section) -> list[float]:
    return [factor(step, LRScheduler(**section), steps) for step in range(1, steps + 1)]


def test_the_first_step_learns_and_the_peak_is_hit_exactly():
    rates = curve(10, warmup_steps=4)
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[5:] == pytest.approx([5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6], rel=1e-15)


@pytest.mark.parametrize("decay_type", ["linear", "sqrt", "cosine"])
@pytest.mark.parametrize("decay_ratio", [None, 0.0, 0.1, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("warmup", [0, 1, 4, 39, 40, 200])
@pytest.mark.parametrize("floor", [0.0, 0.1, 1.0])
def test_every_schedule_rises_to_the_peak_and_falls_no_further_than_the_floor(decay_type, decay_ratio, warmup, floor):
    section = dict(warmup_steps=warmup, decay_type=decay_type, decay_ratio=decay_ratio, min_lr_factor=floor)
    rates = curve(40, **section)
    peak = rates.index(1.0)
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert all(math.isfinite(rate) and 0.0 < rate <= 1.0 for rate in rates)
    assert all(rate >= floor for rate in rates[peak:])


@pytest.mark.parametrize(
    ("decay_type", "half", "last"),
    [
        ("linear", 0.1 + 0.9 * 0.5, 0.1 + 0.9 * 0.1),
        ("sqrt", 0.1 + 0.9 * (1 - math.sqrt(0.5)), 0.1 + 0.9 * (1 - math.sqrt(0.9))),
        ("cosine", 0.1 + 0.9 * 0.5, 0.1 + 0.9 * (1 + math.cos(0.9 * math.pi)) / 2),
    ],
)
def test_decay_follows_its_formula_and_ends_at_the_floor_one_step_after_the_last(decay_type, half, last):
    section = LRScheduler(warmup_steps=5, decay_ratio=0.5, decay_type=decay_type, min_lr_factor=0.1)
    rates = [factor(step, section, 20) for step in range(1, 31)]
    assert rates[4:11] == [1.0] * 7
    assert rates[15] == pytest.approx(half, rel=1e-12)
    assert rates[19] == pytest.approx(last, rel=1e-12)
    assert rates[20:] == pytest.approx([0.1] * 10, rel=1e-12)


def test_a_run_of_one_step_is_at_the_peak():
    assert curve(1, warmup_steps=0) == curve(1, warmup_steps=1) == curve(1, warmup_steps=200) == [1.0]


def test_a_constant_schedule_is_constant():
    assert set(curve(50, warmup_steps=0, decay_ratio=0.0)) == {1.0}
    assert factor(1000, LRScheduler(warmup_steps=0, decay_ratio=0.0), 50) == 1.0


def test_total_steps_takes_the_place_of_the_runs_length():
    short, long = LRScheduler(warmup_steps=2, total_steps=10), LRScheduler(warmup_steps=2)
    assert [factor(step, short, 999) for step in range(1, 11)] == [factor(step, long, 10) for step in range(1, 11)]
    assert factor(11, short, 999) == 0.0


def test_a_step_before_the_first_is_refused():
    with pytest.raises(ValueError, match="from 1"):
        factor(0, LRScheduler(), 10)


def test_the_rate_follows_from_the_step_alone_and_reaches_every_group():
    section = LRScheduler(warmup_steps=3)
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2, 2))]}, {"params": [torch.nn.Parameter(torch.zeros(2))]}]
    optimizer = torch.optim.AdamW(groups, lr=123.0)
    straight = LRSchedule(optimizer, section, peak=2e-3, steps=8)
    every = [straight.apply(step) for step in range(1, 9)]
    resumed = LRSchedule(optimizer, section, peak=2e-3, steps=8)
    assert [resumed.apply(step) for step in (5, 6, 7, 8)] == every[4:]
    assert [group["lr"] for group in optimizer.param_groups] == [every[-1]] * 2
    assert max(every) == 2e-3
