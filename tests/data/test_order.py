"""The order of rows is a bijection for any size, seed and epoch, spreads evenly, and needs nothing but a number."""

from __future__ import annotations

import numpy as np
import pytest

from titan.data.order import permute, round_keys

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("size", [*range(1, 70), 255, 256, 257, 1000, 4096, 99_991])
def test_every_row_has_one_place(size: int) -> None:
    for epoch in range(3):
        places = permute(np.arange(size), size, round_keys(7, epoch))
        assert np.array_equal(np.sort(places), np.arange(size))


def test_a_place_is_computed_without_its_neighbours() -> None:
    size, keys = 12_345, round_keys(1, 2)
    together = permute(np.arange(size), size, keys)
    chosen = np.array([12_344, 0, 77, 77])
    assert np.array_equal(permute(chosen, size, keys), together[chosen])


def test_a_huge_domain_stays_inside_and_does_not_repeat() -> None:
    size = 10**15 + 7
    places = permute(np.arange(5 * 10**14, 5 * 10**14 + 20_000), size, round_keys(0, 0))
    assert places.min() >= 0
    assert places.max() < size
    assert len(np.unique(places)) == 20_000
    assert abs(places.mean() / size - 0.5) < 0.01  # the mean of uniform draws has a deviation of 0.002


def test_seeds_and_epochs_give_orders_that_do_not_resemble_each_other() -> None:
    size = 1000
    orders = [permute(np.arange(size), size, round_keys(seed, epoch)) for seed in (0, 1, 2**62) for epoch in (0, 1)]
    for index, one in enumerate(orders):
        # Two random permutations agree in one place on average, and in more than eight about once in a million.
        for other in [np.arange(size), *orders[:index]]:
            assert (one == other).sum() <= 8
        assert abs(np.corrcoef(one, np.arange(size))[0, 1]) < 0.15


@pytest.mark.parametrize("size", [3, 4, 5, 8])
def test_in_a_small_set_every_row_comes_first_equally_often(size: int) -> None:
    epochs = 2000
    first = [int(permute(np.array([0]), size, round_keys(3, epoch))[0]) for epoch in range(epochs)]
    expected = epochs / size
    counts = np.bincount(first, minlength=size)
    assert (abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_the_order_is_that_of_the_first_release() -> None:
    # Written down: another order at the same seed would silently change what a resumed run reads.
    assert permute(np.arange(10), 10, round_keys(42, 0)).tolist() == [6, 1, 7, 3, 5, 9, 0, 8, 4, 2]
