"""One tokenizing process, fed batches by its parent through a pipe.

A plain child on two pipes rather than multiprocessing: nothing of the parent's main module is imported again (a
launcher may hold torch), and when the parent is killed the pipe ends and the child with it, so that nothing is left
running. A child that dies, by the out-of-memory killer for instance, is an error in the parent and not a wait without
end.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from titan.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Piece:
    """A document, or a part of a long one; `first` and `last` say whether it opens and closes the document."""

    text: str
    first: bool
    last: bool


@dataclass(frozen=True)
class Encoding:
    """How documents become ids: the tokenizer's folder, the ids before and after each, the type that holds an id."""

    folder: Path
    before: tuple[int, ...]
    after: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Encoded:
    """Ids of a batch, one after the other, and the position in them after each document that ended there."""

    ids: NDArray[np.unsignedinteger]
    ends: list[int]


def encode(batch: list[Piece], tokenizer: Tokenizer, encoding: Encoding) -> Encoded:
    """Encodes pieces in order: a function of the text alone, whichever process runs it."""
    ids: list[int] = []
    ends: list[int] = []
    for piece in batch:
        if piece.first:
            ids += encoding.before
        ids += tokenizer.encode(piece.text)
        if piece.last:
            ids += encoding.after
            ends.append(len(ids))
    return Encoded(np.array(ids, dtype=encoding.dtype), ends)


class Worker:
    """The parent's end of one process, which starts with the first call."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, batch: list[Piece]) -> Encoded:
        """Raises RuntimeError where the process failed or died."""
        process = self._started()
        try:
            _send(process.stdin, batch)
            answer = _receive(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise RuntimeError(
                f"a tokenizing process ended with exit code {process.wait()} (-9: killed, as when memory runs out; "
                "a lower training.tokenizer_workers needs less)"
            ) from error
        if isinstance(answer, Encoded):
            return answer
        raise RuntimeError(f"tokenizing failed:\n{answer}")

    def close(self) -> None:
        """Ends the process, in the middle of a batch too, and waits for it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            # The child finds the same modules, also where the parent runs from a source tree.
            path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from titan.data.encode_worker import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
            )
            _send(self._process.stdin, self._encoding)
        return self._process


def _send(stream: IO[bytes] | None, value: object) -> None:
    if stream is None:
        raise EOFError
    pickle.dump(value, stream, protocol=pickle.HIGHEST_PROTOCOL)
    stream.flush()


def _receive(stream: IO[bytes] | None) -> object:
    if stream is None:
        raise EOFError
    return pickle.load(stream)


def main() -> None:
    """Serves the parent until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it closes the pipe
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # a stray print must not get between the answers
    try:
        encoding: Encoding = pickle.load(sys.stdin.buffer)
        tokenizer = Tokenizer(encoding.folder)
        while True:
            batch: list[Piece] = pickle.load(sys.stdin.buffer)
            try:
                answer: object = encode(batch, tokenizer, encoding)
            except Exception:
                answer = traceback.format_exc()
            _send(answers, answer)
    except (EOFError, BrokenPipeError):
        return
