"""Rows from a stream of tokens: each token predicted once an epoch, boundaries masked on demand (C18), epochs
reshuffled (C17)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from titan.data.cache import Corpus
from titan.data.packing import IGNORE, PackedRows

pytestmark = pytest.mark.quick


def corpus(lengths: list[int]) -> Corpus:
    """Documents of these lengths whose tokens are their own positions in the stream."""
    offsets = np.cumsum([0, *lengths])
    return Corpus(np.arange(offsets[-1], dtype=np.uint16), offsets, "data", "tokenizer")


def rows_of(
    lengths: list[int], *, seq_len: int = 4, seed: int = 0, shuffle: bool = False, mask: bool = False
) -> PackedRows:
    return PackedRows(corpus(lengths), seq_len=seq_len, seed=seed, shuffle=shuffle, mask_document_boundaries=mask)


@pytest.mark.parametrize("tokens", range(2, 20))
@pytest.mark.parametrize("seq_len", [1, 2, 4, 7])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_token_but_the_first_is_predicted_once_an_epoch(tokens: int, seq_len: int, shuffle: bool) -> None:
    rows = rows_of([tokens], seq_len=seq_len, shuffle=shuffle)
    assert rows.rows_per_epoch == -(-(tokens - 1) // seq_len)
    inputs, labels = rows.fetch(0, rows.rows_per_epoch)
    assert inputs.shape == labels.shape == (rows.rows_per_epoch, seq_len)
    assert inputs.dtype == labels.dtype == np.int64
    valid = labels != IGNORE
    assert sorted(labels[valid].tolist()) == list(range(1, tokens))
    assert (inputs[valid] + 1 == labels[valid]).all()  # tokens are positions: the label is the successor
    assert inputs.max() < tokens


@pytest.mark.parametrize("seq_len", [1, 3, 4, 16])
def test_masking_takes_away_one_label_a_boundary_and_the_right_one(seq_len: int) -> None:
    lengths = [3, 1, 1, 4, 5, 2, 8]
    plain = rows_of(lengths, seq_len=seq_len)
    masked = rows_of(lengths, seq_len=seq_len, mask=True)
    inputs, labels = plain.fetch(0, plain.rows_per_epoch)
    masked_inputs, masked_labels = masked.fetch(0, masked.rows_per_epoch)
    assert np.array_equal(inputs, masked_inputs)
    gone = sorted(labels[(labels != IGNORE) & (masked_labels == IGNORE)].tolist())
    assert gone == np.cumsum(lengths)[:-1].tolist()  # the first tokens of all documents but the first


def test_a_document_without_a_token_is_no_second_boundary() -> None:
    _, labels = rows_of([3, 0, 4], seq_len=6, mask=True).fetch(0, 1)
    assert labels.tolist() == [[1, 2, IGNORE, 4, 5, 6]]


def test_each_epoch_has_an_order_of_its_own_and_the_seed_decides() -> None:
    rows = rows_of([33], shuffle=True)  # 8 rows
    epochs = [rows.fetch(8 * epoch, 8)[0][:, 0].tolist() for epoch in range(5)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(0, 32, 4))
    assert all(one != other for one, other in pairwise(epochs))
    assert len({tuple(epoch) for epoch in epochs}) >= 4
    again = rows_of([33], shuffle=True)
    assert [again.fetch(8 * epoch, 8)[0][:, 0].tolist() for epoch in range(5)] == epochs
    other = rows_of([33], shuffle=True, seed=1)
    assert [other.fetch(8 * epoch, 8)[0][:, 0].tolist() for epoch in range(5)] != epochs


def test_without_shuffling_every_epoch_has_the_order_of_the_data() -> None:
    rows = rows_of([33])
    assert rows.fetch(0, 16)[0][:, 0].tolist() == 2 * list(range(0, 32, 4))


@pytest.mark.parametrize("sizes", [[1] * 30, [7, 16, 7], [30], [0, 5, 25]])
def test_the_rows_do_not_depend_on_how_they_are_fetched(sizes: list[int]) -> None:
    rows = rows_of([10, 23], shuffle=True, mask=True)  # 8 rows an epoch: 30 rows cross three ends
    starts = np.cumsum([0, *sizes])
    parts = [rows.fetch(int(start), size) for start, size in zip(starts, sizes, strict=False)]
    for kind in (0, 1):
        assert np.array_equal(np.concatenate([part[kind] for part in parts]), rows.fetch(0, 30)[kind])


def test_going_to_a_far_row_costs_no_more_than_to_the_first() -> None:
    rows = rows_of([33], shuffle=True)
    inputs, _ = rows.fetch(8 * 10**15, 8)
    assert sorted(inputs[:, 0].tolist()) == list(range(0, 32, 4))


def test_the_fingerprint_changes_with_what_a_row_number_means() -> None:
    base = rows_of([33])
    assert base.fingerprint == rows_of([33], seed=5).fingerprint
    assert base.fingerprint != rows_of([33], mask=True).fingerprint
    assert base.fingerprint != rows_of([33], seq_len=5).fingerprint
    assert base.fingerprint != rows_of([33], shuffle=True).fingerprint
    assert base.tokenizer_fingerprint == "tokenizer"


def test_a_negative_row_and_data_of_one_token_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        rows_of([33]).fetch(-1, 2)
    with pytest.raises(ValueError, match="at least 2"):
        rows_of([1])
