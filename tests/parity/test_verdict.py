"""From shards to a verdict: what is covered, what is beyond its limit, and that nothing undefined passes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from titan.parity.verdict import Compared, Differences, Measured, OracleRun, differences, judge, noise_floor

pytestmark = pytest.mark.quick

SHAPE, EPSILON = (4, 2), 2**-23


def half(which: int, difference: float = 0.0, identical: bool = True) -> Compared:
    return Compared("w", SHAPE, ((which * 2, which * 2 + 2), (0, 2)), difference, 1.0, identical)


def measured(shards: list[Compared], loss: float = 2.0, norm: float = 1.0) -> Measured:
    return Measured([(loss, norm)], shards, [shards], shards, 64)


def beyond(found: Differences, noise: Differences) -> set[str]:
    return {one.kind for one in judge(found, noise, EPSILON) if not one.within}


BOTH = [half(0), half(1)]
RUN = OracleRun([(2.0, 1.0)], measured(BOTH), EPSILON)


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


NOISE = Differences(True, 1e-9, 1e-6, {"a": 2.0, "b": 1e-6}, {"a": 1e-4, "b": 1e-6}, 1e-6, {"a": 0.02, "b": 1.0})


def test_each_gradient_has_a_limit_of_four_times_its_own_noise_but_never_under_1e_5() -> None:
    assert not beyond(NOISE, NOISE)
    found = replace(NOISE, gradients={"a": 3.0, "b": 1.1e-5})
    (gradients,) = [one for one in judge(found, NOISE, EPSILON) if one.kind == "gradients"]
    assert (gradients.fqn, gradients.value, gradients.limit) == ("b", 1.1e-5, 1e-5), "not hidden by the noise of a"
    assert beyond(replace(NOISE, gradients={"a": 9.0, "b": 0.0}), NOISE) == {"gradients"}


def test_a_weight_may_move_as_far_as_the_one_that_noise_moved_furthest() -> None:
    noise = replace(NOISE, weights={"a": 1e-3, "b": 1e-6})  # an element of a moved by 2e-5
    assert not beyond(replace(noise, weights={"a": 3.9e-3, "b": 7.9e-5}), noise)
    assert beyond(replace(noise, weights={"a": 4.1e-3, "b": 0.0}), noise) == {"weights"}
    assert beyond(replace(noise, weights={"a": 0.0, "b": 8.1e-5}), noise) == {"weights"}


def test_the_norm_is_bounded_by_the_whole_gradient_and_the_loss_by_the_type() -> None:
    noise = replace(NOISE, whole_gradient=1e-3)
    assert not beyond(replace(noise, grad_norm=3.9e-3), noise)
    assert beyond(replace(noise, grad_norm=4.1e-3), noise) == {"grad_norm"}
    assert beyond(replace(noise, loss=1.1e-5), noise) == {"loss"}
    assert [one.limit for one in judge(noise, noise, 2**-7) if one.kind == "loss"] == [2**-13]
