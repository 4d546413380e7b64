"""What training reads: rows by their number in the run, and how the configured ones are opened.

`Rows` is the contract; tests inject their own. The n-th row is a function of (seed, n), never of a rank, a degree or a
batch size, so that a run's position in its data is one number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from titan.data import cache
from titan.data.packing import PackedRows

if TYPE_CHECKING:
    from titan.config.schema_model import Model
    from titan.config.schema_training import Training


class Rows(Protocol):
    """Rows of token ids, addressed by their number in the run.

    Attributes:
        seq_len: tokens a row.
        fingerprint: what a checkpoint stores to know the data again: the same on every machine that holds it.
        tokenizer_fingerprint: the same of the tokenizer.
        rows_per_epoch: rows of one pass over the data.
    """

    seq_len: int
    fingerprint: str
    tokenizer_fingerprint: str
    rows_per_epoch: int

    def fetch(self, start: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows start ... start + count - 1: inputs and labels, (count, seq_len) int64; label -100: no loss there."""
        ...


def prepare(training: Training, model: Model) -> None:
    """Tokenizes the data into the cache where it is not there: what a launcher does before any process group waits.

    Safe from several processes at once; no torch. Raises DataError (a ValueError) for data that is missing, unreadable
    or empty, or a tokenizer without what is asked of it.
    """
    cache.prepare(training, model)


def open_rows(training: Training, model: Model, seed: int) -> Rows:
    """The rows of the configured data in the order of `seed`; prepares them first if need be. Raises DataError."""
    return PackedRows(
        cache.open_corpus(cache.prepare(training, model)),
        seq_len=training.seq_len,
        seed=seed,
        shuffle=training.shuffle,
        mask_document_boundaries=training.mask_document_boundaries,
    )
