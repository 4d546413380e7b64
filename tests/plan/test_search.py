"""The search over layouts."""

from __future__ import annotations

import json

import pytest

from tests.plan.tiny_plan import DEBUG, target
from titan.commands import plan
from titan.plan.request import read
from titan.plan.search import Found, search

WORDS = ["--model.args.n_heads=4"]


@pytest.fixture(scope="module")
def found() -> Found:
    return search(read(DEBUG, WORDS, 8, target()), target(), wanted=4)


def test_layouts_fill_the_world_and_the_fastest_that_fit_come_first(found: Found) -> None:
    assert len(found.ranked) >= 15
    assert all(candidate.resolved.degrees.world_size == 8 for candidate in found.ranked)
    assert all(candidate.resolved.batch.global_rows == 32 for candidate in found.ranked)
    fitting = [candidate for candidate in found.ranked if candidate.fits]
    assert found.ranked[: len(fitting)] == tuple(fitting)
    assert len(fitting) == 4
    assert [candidate.seconds for candidate in fitting] == sorted(candidate.seconds for candidate in fitting)
    schedules = {candidate.schedule for candidate in found.ranked if candidate.resolved.degrees.pp > 1}
    assert schedules == {"1F1B", "Interleaved1F1B", "ZBVZeroBubble"}


def test_what_is_refused_is_counted_with_an_example(found: Found) -> None:
    refusal = found.refused["model"]
    assert (refusal.count, refusal.layout) == (1, "tp 8")
    assert refusal.text.startswith("n_heads = 4 does not divide by tensor_parallel_degree = 8")


def test_a_device_too_small_for_any_layout_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    words = [DEBUG, "--world-size", "2", "--model.flavor=8B", "--memory", "1", "--search", "--json"]
    assert plan.main(words) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["layouts"] == []
    assert answer["too_large"] > 0
