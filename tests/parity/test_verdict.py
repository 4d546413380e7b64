"""From shards to a verdict: what is covered, what is beyond its limit, and that nothing undefined passes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from titan.parity.verdict import Compared, Differences, Measured, OracleRun, differences, judge, noise_floor

pytestmark = pytest.mark.quick

SHAPE = (4, 2)


def half(which: int, difference: float = 0.0, identical: bool = True) -> Compared:
    return Compared("w", SHAPE, ((which * 2, which * 2 + 2), (0, 2)), difference, 1.0, identical)


def measured(shards: list[Compared], loss: float = 2.0, norm: float = 1.0) -> Measured:
    return Measured([(loss, norm)], shards, [shards], shards, 64)


def beyond(found: Differences, noise: Differences) -> set[str]:
    return {one.kind for one in judge(found, noise) if not one.within}


BOTH = [half(0), half(1)]
RUN = OracleRun([(2.0, 1.0)], measured(BOTH))


def test_shards_of_two_ranks_join_to_one_relative_difference() -> None:
    found = differences(RUN, [measured([half(0, 3e-8)]), measured([half(1, 1e-8)])])
    assert found.gradients == found.weights == {"w": pytest.approx(math.sqrt(4e-8 / 2))}
    assert found.initial


def test_of_replicas_the_worst_counts() -> None:
    found = differences(RUN, [measured(BOTH), measured([half(0), half(1, 2e-6, identical=False)])])
    assert found.gradients["w"] == pytest.approx(1e-3)
    assert not found.initial


def test_loss_and_norm_of_every_rank_count() -> None:
    found = differences(RUN, [measured(BOTH), measured(BOTH, loss=2.2, norm=0.5)])
    assert (found.loss, found.grad_norm) == pytest.approx((0.1, 0.5))


def test_an_element_on_no_rank_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"w: 4 of 8 elements of the initial weights are on some rank"):
        differences(RUN, [measured([half(0)]), measured([half(0)])])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_beyond_every_limit(value: float) -> None:
    noise = noise_floor(RUN)
    assert beyond(differences(RUN, [measured(BOTH, loss=value, norm=value)]), noise) == {"loss", "grad_norm"}
    assert beyond(differences(RUN, [measured([half(0, math.inf), half(1)])]), noise) == {"gradients", "weights"}


def test_each_parameter_has_a_limit_of_four_times_its_own_noise_but_never_under_1e_5() -> None:
    noise = Differences(True, 1e-9, 1e-6, {"a": 2.0, "b": 1e-6}, {"a": 1e-4, "b": 1e-4})
    assert not beyond(noise, noise)
    found = replace(noise, gradients={"a": 3.0, "b": 1.1e-5})
    (gradients,) = [one for one in judge(found, noise) if one.kind == "gradients"]
    assert (gradients.fqn, gradients.value, gradients.limit) == ("b", 1.1e-5, 1e-5), "not hidden by the noise of a"
    assert beyond(replace(noise, weights={"a": 1e-4, "b": 5e-4}), noise) == {"weights"}
