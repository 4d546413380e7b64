"""Tokenizing in processes: the ids are those of one process, memory stays bounded, and a process that dies is an
error."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from titan.config.schema_model import Model
from titan.data import encode as encoding_module
from titan.data.encode import encode_all, pieces
from titan.data.encode_worker import Encoding, Piece, Worker
from titan.data.tokenizer import SHIPPED, Tokenizer, load

ENCODING = Encoding(SHIPPED, (0,), (1,), "<u2")


def documents(count: int, *, seed: int = 0) -> Iterator[str]:
    """Texts of many lengths, with words that are found again."""
    source = random.Random(seed)
    words = ["".join(source.choices("abcdefghij_() \n=", k=source.randint(1, 9))) for _ in range(500)]
    for _ in range(count):
        yield " ".join(source.choices(words, k=source.randint(1, 300)))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load(Model())


def all_ids(texts: Iterator[str], tokenizer: Tokenizer, workers: int) -> tuple[list[int], list[int]]:
    """Ids of all documents and where each ends."""
    ids: list[int] = []
    ends: list[int] = []
    for encoded in encode_all(texts, tokenizer, ENCODING, workers):
        ends += [len(ids) + end for end in encoded.ends]
        ids += encoded.ids.tolist()
    return ids, ends


def test_the_ids_do_not_depend_on_the_number_of_processes(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding_module, "_BATCH_CHARACTERS", 1 << 14)
    expected: list[int] = []
    ends: list[int] = []
    for text in documents(400):  # 300 KB, 20 batches
        expected += [0, *tokenizer.encode(text), 1]
        ends.append(len(expected))
    for workers in (1, 2, 3):
        assert all_ids(documents(400), tokenizer, workers) == (expected, ends)


def test_little_data_starts_no_process(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(encoding_module, "_in_processes", refuse)
    monkeypatch.setattr(encoding_module, "_BATCH_CHARACTERS", 1 << 14)
    assert len(all_ids(documents(50), tokenizer, 4)[1]) == 50
    with pytest.raises(AssertionError, match="a process was started"):
        all_ids(documents(400), tokenizer, 4)


def test_only_a_window_of_the_data_is_read_ahead(tokenizer: Tokenizer) -> None:
    read = 0

    def counted() -> Iterator[str]:
        nonlocal read
        while True:  # without end: reading ahead without bound would never come back
            read += 1
            yield "x " * 100_000

    encoded = encode_all(counted(), tokenizer, ENCODING, 2)
    assert len(list(islice(encoded, 3))) == 3
    assert read < 60
    encoded.close()


@pytest.mark.quick
@pytest.mark.parametrize("longest", [1, 2, 7, 16, 1000])
def test_pieces_put_together_are_the_document(longest: int) -> None:
    for text in ["", "a", "abc\ndef\n\n  ghi\n" * 7, "no line end in it at all " * 5]:
        parts = list(pieces(text, longest))
        assert "".join(part.text for part in parts) == text
        assert [part.first for part in parts] == [True] + [False] * (len(parts) - 1)
        assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
        assert all(len(part.text) <= longest for part in parts)


@pytest.mark.quick
def test_a_long_document_cut_at_its_lines_has_the_ids_of_the_whole(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"def f{index}(x):\n    return x + {index}\nx = 1\n\n" for index in range(3000))
    whole = all_ids(iter([text]), tokenizer, 1)
    monkeypatch.setattr(encoding_module, "_PIECE_CHARACTERS", 4096)
    assert all_ids(iter([text]), tokenizer, 1) == whole


def test_a_process_that_is_killed_is_an_error_with_its_code_and_not_a_wait() -> None:
    worker = Worker(ENCODING)
    assert worker([Piece("a", True, True)]).ends == [3]
    process = worker._started()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(RuntimeError, match=r"exit code -9 .*tokenizer_workers"):
        worker([Piece("a", True, True)])
    worker.close()


def test_an_error_in_a_process_arrives_with_its_traceback_and_the_process_goes_on() -> None:
    worker = Worker(ENCODING)
    with pytest.raises(RuntimeError, match=r"tokenizing failed:\n.*Traceback[\s\S]*TextInput"):
        worker([Piece("\ud800", True, True)])
    assert np.array_equal(worker([Piece("", True, True)]).ids, [0, 1])
    worker.close()
    assert worker._started().poll() is not None


def test_an_error_of_reading_ends_the_processes(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Worker] = []

    class Counted(Worker):
        def __init__(self, encoding: Encoding) -> None:
            super().__init__(encoding)
            started.append(self)

    monkeypatch.setattr(encoding_module, "Worker", Counted)

    monkeypatch.setattr(encoding_module, "_BATCH_CHARACTERS", 1 << 14)

    def broken() -> Iterator[str]:
        yield from documents(400)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        all_ids(broken(), tokenizer, 2)
    assert len(started) == 2
    assert all(worker._started().poll() is not None for worker in started)
