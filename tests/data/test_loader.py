"""A step's rows at any degree: the union over ranks is the step of one rank, and a position is all that a resume needs
(C15-C17)."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from titan.data.loader import StepLoader

pytestmark = pytest.mark.quick


class Numbered:
    """Rows whose every token is the row's own number; optionally slow, or failing from one row on."""

    seq_len = 3
    fingerprint = tokenizer_fingerprint = "numbered"
    rows_per_epoch = 5

    def __init__(self, *, seconds: float = 0.0, fails_at: int | None = None) -> None:
        self.seconds = seconds
        self.fails_at = fails_at
        self.fetched: list[int] = []

    def fetch(self, start: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        time.sleep(self.seconds)
        self.fetched.append(start)
        if self.fails_at is not None and start + count > self.fails_at:
            raise OSError(f"row {self.fails_at} cannot be read")
        rows = np.repeat(np.arange(start, start + count)[:, None], self.seq_len, axis=1)
        return rows, rows + 1


def take(steps: int, **values: Any) -> list[torch.Tensor]:
    """Row numbers of each step, (accumulation, rows)."""
    defaults = {"global_rows": 8, "accumulation": 1, "batch_ranks": 1, "batch_rank": 0, "position": 0}
    with StepLoader(Numbered(), **{**defaults, **values}) as loader:
        return [next(loader).inputs[:, :, 0] for _ in range(steps)]


@pytest.mark.parametrize("batch_ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("accumulation", [1, 2, 4])
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_the_ranks_together_read_the_step_of_one_rank(batch_ranks: int, accumulation: int, prefetch: int) -> None:
    if 8 % (batch_ranks * accumulation):
        with pytest.raises(ValueError, match="do not divide"):
            take(1, batch_ranks=batch_ranks, accumulation=accumulation)
        return
    ranks = [
        take(3, batch_ranks=batch_ranks, batch_rank=rank, accumulation=accumulation, prefetch=prefetch)
        for rank in range(batch_ranks)
    ]
    for step in range(3):
        assert all(rank[step].shape == (accumulation, 8 // batch_ranks // accumulation) for rank in ranks)
        # By batch rank, then by accumulation step, then by row.
        together = torch.cat([rank[step].flatten() for rank in ranks])
        assert together.tolist() == list(range(8 * step, 8 * step + 8))


def test_a_step_has_inputs_and_labels_of_int64() -> None:
    with StepLoader(Numbered(), global_rows=4, accumulation=2, batch_ranks=1, batch_rank=0, position=0) as loader:
        data = next(loader)
    assert data.inputs.shape == data.labels.shape == (2, 2, 3)
    assert data.inputs.dtype == data.labels.dtype == torch.int64
    assert torch.equal(data.labels, data.inputs + 1)


def test_going_on_from_a_position_is_going_straight_on_also_with_another_batch() -> None:
    straight = torch.cat([step.flatten() for step in take(6)])
    resumed = torch.cat([step.flatten() for step in take(2, global_rows=12, accumulation=3, position=24)])
    assert torch.equal(straight[24:], resumed)


def test_the_position_counts_what_was_handed_out_not_what_was_prefetched() -> None:
    rows = Numbered()
    with StepLoader(
        rows, global_rows=8, accumulation=1, batch_ranks=2, batch_rank=1, position=16, prefetch=3
    ) as loader:
        assert loader.position == 16
        next(loader)
        assert loader.position == 24
        deadline = time.monotonic() + 5
        while len(rows.fetched) < 4 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert rows.fetched == [20, 28, 36, 44]  # the one handed out and three ahead
        assert loader.position == 24


def test_the_wait_is_that_of_the_reader_and_is_hidden_by_work() -> None:
    with StepLoader(
        Numbered(seconds=0.1), global_rows=8, accumulation=1, batch_ranks=1, batch_rank=0, position=0
    ) as loader:
        assert next(loader).wait_seconds > 0.05
        time.sleep(0.4)
        assert next(loader).wait_seconds < 0.05


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_of_reading_surfaces_at_its_step_and_stays(prefetch: int) -> None:
    with StepLoader(
        Numbered(fails_at=17), global_rows=8, accumulation=1, batch_ranks=1, batch_rank=0, position=0, prefetch=prefetch
    ) as loader:
        next(loader)
        next(loader)
        for _ in range(2):
            with pytest.raises(OSError, match="row 17 cannot be read"):
                next(loader)
        assert loader.position == 16


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_closing_ends_the_thread_whatever_it_is_doing(taken: int) -> None:
    before = threading.active_count()
    loader = StepLoader(Numbered(), global_rows=8, accumulation=1, batch_ranks=1, batch_rank=0, position=0)
    for _ in range(taken):
        next(loader)
    loader.close()
    loader.close()
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="closed"):
        next(loader)


def test_closing_wakes_a_step_that_waits_for_data() -> None:
    loader = StepLoader(
        Numbered(seconds=0.3), global_rows=8, accumulation=1, batch_ranks=1, batch_rank=0, position=0, prefetch=1
    )
    next(loader)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            while True:
                next(loader)
        except RuntimeError as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    loader.close()
    waiting.join(timeout=5)
    assert not waiting.is_alive()
    assert "closed" in str(caught[0])


@pytest.mark.parametrize(
    "values",
    [
        {"global_rows": 0},
        {"global_rows": 9, "batch_ranks": 2},
        {"batch_ranks": 2, "batch_rank": 2},
        {"position": -1},
        {"prefetch": -1},
    ],
)
def test_numbers_that_do_not_fit_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"rows|range"):
        take(1, **values)
