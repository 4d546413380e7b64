"""The time limit leaves room for a step and a save, as long as both have taken so far."""

from __future__ import annotations

import pytest

from titan.config import durations
from titan.config.schema_run import Job
from titan.faults.time_budget import TimeBudget

pytestmark = pytest.mark.quick


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def budget(limit: int | None) -> tuple[TimeBudget, Clock]:
    clock = Clock()
    return TimeBudget(limit, began=clock.now, clock=clock), clock


def test_stops_when_a_step_and_a_save_no_longer_fit():
    left, clock = budget(100)
    clock.now += 10.0
    left.step_taken()
    left.save_begun()
    clock.now += 20.0
    left.save_done()
    clock.now = 1000.0 + 100 - 10 - 20
    assert not left.is_spent()
    clock.now += 0.1
    assert left.is_spent()


def test_before_the_first_save_a_tenth_is_kept_for_it():
    left, clock = budget(100)
    clock.now += 89.0
    assert not left.is_spent()
    clock.now += 2.0
    assert left.is_spent()


def test_a_background_save_counts_until_it_is_written():
    left, clock = budget(1000)
    left.save_begun()
    clock.now += 300.0
    left.save_done()
    left.save_done()
    clock.now = 1000.0 + 701
    assert left.is_spent()


def test_the_slow_first_step_is_forgotten():
    left, clock = budget(100)
    clock.now += 50.0  # compilation
    left.step_taken()
    for _ in range(8):
        clock.now += 1.0
        left.step_taken()
    clock.now = 1000.0 + 80
    assert not left.is_spent()


def test_no_limit_is_never_spent():
    left, clock = budget(None)
    clock.now += 1e9
    assert not left.is_spent()


@pytest.mark.parametrize(
    ("text", "wanted"), [("2h30m", 9000), ("90s", 90), ("1d", 86400), ("1h5s", 3605), (" 10m ", 600), (45, 45)]
)
def test_durations(text, wanted):
    assert durations.seconds(text) == wanted
    assert Job(time_limit=text).time_limit == wanted


@pytest.mark.parametrize("text", ["", "2 hours", "30m2h", "h", "-5m", "1.5h"])
def test_other_text_is_refused_with_the_rule(text):
    with pytest.raises(ValueError, match="time_limit"):
        Job(time_limit=text)
