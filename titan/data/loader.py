"""Rows to the steps of one batch rank, a few steps ahead in a thread.

Of the `global_rows` rows of a step, batch rank b takes the b-th contiguous block, accumulation step a the a-th
contiguous part of that. So the union over ranks is the same rows in the same order at any degree. Ranks of one batch
group (tp, cp, pp peers) pass the same `batch_rank` and read the same. The state is one number, the rows that the whole
job has consumed, since rows are addressed by number.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from titan.data.rows import Rows


@dataclass(frozen=True)
class StepData:
    """One optimizer step of one batch rank.

    Attributes:
        inputs, labels: (accumulation, rows, seq_len) int64 on the CPU; label -100: no loss there.
        wait_seconds: how long the step had to wait for them.
    """

    inputs: Tensor
    labels: Tensor
    wait_seconds: float


class StepLoader(Iterator[StepData]):
    """Endless iterator over steps, from `position` on. `close()` it, or use it as a context manager."""

    def __init__(
        self,
        rows: Rows,
        *,
        global_rows: int,
        accumulation: int,
        batch_ranks: int,
        batch_rank: int,
        position: int,
        prefetch: int = 2,
        pin_memory: bool = False,
    ) -> None:
        """
        Args:
            rows: where rows come from; `fetch` is called by one thread only.
            global_rows: rows of a step over the whole job.
            accumulation: forwards of a step.
            batch_ranks, batch_rank: how many read different rows, and which of them this one is.
            position: rows that the whole job has consumed before.
            prefetch: steps kept ready; 0 fetches in `next`.
            pin_memory: page-locked tensors, for copies to an accelerator beside its work.

        Raises ValueError where the rows do not divide.
        """
        if global_rows < 1 or global_rows % (batch_ranks * accumulation):
            raise ValueError(
                f"{global_rows} rows a step do not divide by {batch_ranks} batch ranks x {accumulation} accumulation "
                "steps"
            )
        if not 0 <= batch_rank < batch_ranks or position < 0 or prefetch < 0:
            raise ValueError(
                f"batch rank {batch_rank} of {batch_ranks}, position {position}, prefetch {prefetch}: out of range"
            )
        self.position = position
        self._rows = rows
        self._global_rows = global_rows
        self._accumulation = accumulation
        self._own = global_rows // batch_ranks
        self._batch_rank = batch_rank
        self._pin = pin_memory
        self._failure: BaseException | None = None
        self._closed = False
        self._ready: queue.SimpleQueue[tuple[Tensor, Tensor] | BaseException | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(prefetch)
        self._thread: threading.Thread | None = None
        if prefetch:
            self._thread = threading.Thread(target=self._run, args=(position,), name="titan-data", daemon=True)
            self._thread.start()

    def __next__(self) -> StepData:
        """The next step's rows. Raises what reading raised, each time from then on; RuntimeError once closed."""
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise RuntimeError("the loader is closed")
        begun = time.perf_counter()
        if self._thread is None:
            inputs, labels = self._fetch(self.position)
        else:
            item = self._ready.get()
            if item is None:
                raise RuntimeError("the loader was closed while a step waited for data")
            if isinstance(item, BaseException):
                self._failure = item
                raise item
            inputs, labels = item
            self._room.release()
        self.position += self._global_rows
        return StepData(inputs, labels, time.perf_counter() - begun)

    def close(self) -> None:
        """Ends the thread and waits for it: at most for the fetch that it is in. Can be called again."""
        self._closed = True
        self._room.release()
        if self._thread is not None:
            self._thread.join()
        self._ready.put(None)  # for a thread that waits in `next`

    def __enter__(self) -> StepLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self, position: int) -> None:
        try:
            while True:
                self._room.acquire()
                if self._closed:
                    return
                self._ready.put(self._fetch(position))
                position += self._global_rows
        except BaseException as error:  # handed on: `next` raises it in the training thread
            self._ready.put(error)

    def _fetch(self, position: int) -> tuple[Tensor, Tensor]:
        found = self._rows.fetch(position + self._batch_rank * self._own, self._own)
        # (own, seq_len) -> (accumulation, rows, seq_len)
        shape = (self._accumulation, self._own // self._accumulation, self._rows.seq_len)
        inputs, labels = (torch.from_numpy(array).reshape(shape) for array in found)
        return (inputs.pin_memory(), labels.pin_memory()) if self._pin else (inputs, labels)
