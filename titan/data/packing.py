"""Tokens to rows: one stream of documents, cut every `seq_len` tokens; the n-th row of a run as a function of (seed,
n).

Row r of the data reads tokens r x seq_len ... + seq_len - 1 and predicts each one's successor, so that every token but
the first is predicted once an epoch. The last row is filled up: its labels past the end are -100 (no loss), hence fewer
valid tokens. Documents may span rows and share them; attention crosses their boundary, and with
`mask_document_boundaries` no loss is taken on the first token of a document (one label less a boundary).

Documents keep their order; rows are shuffled, anew each epoch (order.py). Nothing here knows a rank or a batch.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
from numpy.typing import NDArray

from titan.data.cache import Corpus
from titan.data.order import permute, round_keys

IGNORE = -100
"""Label of a position without loss: torch's default `ignore_index`."""
_VERSION = 1


class PackedRows:
    """The rows of a corpus, by number; implements `Rows`.

    Attributes:
        seq_len: tokens a row.
        rows_per_epoch: ceil((tokens - 1) / seq_len).
        fingerprint: of the tokens and of what decides inputs and labels of a row and its number, but for the seed.
        tokenizer_fingerprint: of the tokenizer that made the tokens.
    """

    def __init__(
        self, corpus: Corpus, *, seq_len: int, seed: int, shuffle: bool, mask_document_boundaries: bool
    ) -> None:
        """Raises ValueError for fewer than 2 tokens."""
        if len(corpus.tokens) < 2:
            raise ValueError(f"{len(corpus.tokens)} tokens make no row: at least 2 are needed")
        self.seq_len = seq_len
        self.rows_per_epoch = -(-(len(corpus.tokens) - 1) // seq_len)
        self.tokenizer_fingerprint = corpus.tokenizer_fingerprint
        identity = [_VERSION, corpus.fingerprint, seq_len, shuffle]
        if mask_document_boundaries:  # only then, so that older checkpoints of unmasked data keep their fingerprint
            identity.append("mask_document_boundaries")
        self.fingerprint = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
        self._tokens = corpus.tokens
        self._starts = corpus.offsets[1:-1]  # of every document but the first, which nothing predicts
        self._seed = seed
        self._shuffle = shuffle
        self._mask = mask_document_boundaries

    def fetch(self, start: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows number start ... start + count - 1 of the run, epochs after one another.

        Returns inputs and labels, each (count, seq_len) int64; labels are -100 where no loss is taken. Raises
        ValueError for a negative number.
        """
        if start < 0 or count < 0:
            raise ValueError(f"rows {start} ... + {count}: neither may be negative")
        rows = self._places(start, count)
        last = len(self._tokens) - 1
        first_target = rows * self.seq_len + 1  # (count,)
        targets = first_target[:, None] + np.arange(self.seq_len)  # (count, seq_len)
        inputs = self._tokens[np.minimum(targets - 1, last)].astype(np.int64)
        labels = self._tokens[np.minimum(targets, last)].astype(np.int64)
        labels[targets > last] = IGNORE
        if self._mask:
            low = np.searchsorted(self._starts, first_target, side="left")
            high = np.searchsorted(self._starts, first_target + self.seq_len, side="left")
            for row in np.flatnonzero(high > low):
                labels[row, self._starts[low[row] : high[row]] - first_target[row]] = IGNORE
        return inputs, labels

    def _places(self, start: int, count: int) -> NDArray[np.int64]:
        """(count,) which row of the data each number of the run is."""
        numbers = np.arange(start, start + count, dtype=np.int64)
        epochs, places = np.divmod(numbers, self.rows_per_epoch)
        if self._shuffle:
            for epoch in np.unique(epochs):
                chosen = epochs == epoch
                places[chosen] = permute(places[chosen], self.rows_per_epoch, round_keys(self._seed, int(epoch)))
        return places
