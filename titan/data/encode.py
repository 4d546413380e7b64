"""Documents to ids, in parallel and in order: the ids are the same for any number of processes.

Documents travel in batches of about 256 KiB of text. A bounded window of batches is out at a time, so that memory stays
flat however large the data, and answers are taken in the order of the questions. Little data is encoded here, since a
process takes longer to start. A document above 4 M characters is cut into pieces at line ends between
text, where tokenizers split anyway; so one file of a gigabyte uses all cores and a bounded amount of memory.
"""

from __future__ import annotations

import os
import queue
import re
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice

from titan.data.encode_worker import Encoded, Encoding, Piece, Worker, encode
from titan.data.tokenizer import Tokenizer

_BATCH_CHARACTERS = 1 << 18
_BATCH_PIECES = 1024
_PIECE_CHARACTERS = 4 << 20
_SMALL = 8
"""Batches that are encoded in this process."""
_LINE_END = re.compile(r"(?<=\S)\n(?=\S)")


def default_workers() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encode_all(
    texts: Iterator[str], tokenizer: Tokenizer, encoding: Encoding, workers: int
) -> Generator[Encoded, None, None]:
    """Encodes documents with `workers` processes. Raises what reading raises; RuntimeError where a process died."""
    batches = _batches(texts)
    head = list(islice(batches, _SMALL))
    if workers == 1 or len(head) < _SMALL:
        for batch in chain(head, batches):
            yield encode(batch, tokenizer, encoding)
        return
    yield from _in_processes(chain(head, batches), encoding, workers)


def _in_processes(batches: Iterator[list[Piece]], encoding: Encoding, workers: int) -> Generator[Encoded, None, None]:
    processes = [Worker(encoding) for _ in range(workers)]
    # Last in, first out: a short job starts only as many processes as it needs.
    idle: queue.LifoQueue[Worker] = queue.LifoQueue()
    for process in processes:
        idle.put(process)

    def call(batch: list[Piece]) -> Encoded:
        process = idle.get()
        try:
            return process(batch)
        finally:
            idle.put(process)

    threads = ThreadPoolExecutor(workers, thread_name_prefix="tokenize")
    window: deque[Future[Encoded]] = deque()
    try:
        for batch in batches:
            window.append(threads.submit(call, batch))
            if len(window) >= 2 * workers:
                yield window.popleft().result()
        while window:
            yield window.popleft().result()
    finally:
        for future in window:
            future.cancel()
        for process in processes:  # before the threads, which wait for their answers
            process.close()
        threads.shutdown()


def _batches(texts: Iterator[str]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    characters = 0
    for text in texts:
        for piece in pieces(text, _PIECE_CHARACTERS):
            batch.append(piece)
            characters += len(piece.text)
            if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_PIECES:
                yield batch
                batch, characters = [], 0
    if batch:
        yield batch


def pieces(text: str, longest: int) -> Iterator[Piece]:
    """Cuts a document into pieces of at most `longest` characters: after the first line end between text in the last
    quarter of a piece, else at its end."""
    start = 0
    while True:
        stop = start + longest
        if stop >= len(text):
            yield Piece(text[start:], start == 0, True)
            return
        if found := _LINE_END.search(text, stop - longest // 4, stop):
            stop = found.end()
        yield Piece(text[start:stop], start == 0, False)
        start = stop
