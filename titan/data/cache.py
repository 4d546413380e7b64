"""The tokenized data on disk: written once, then memory-mapped by every process of every run.

One folder a (data, tokenizer, markers), named by the hash of what identifies them:

    tokens.bin   ids of all documents, one after the other, little-endian uint16, or uint32 for more than 65,536 ids
    offsets.npy  int64 (documents + 1,): where each document begins, and the end
    meta.json    counts, fingerprints, what was skipped

It is written beside its name, synced, and renamed when complete, so that a reader sees all of it or nothing whenever
the writer is killed. A file lock keeps several processes from doing the same work; where the file system has no locks
they do it twice and the first rename wins. The fingerprint is of the content alone, neither of paths nor of times: a
copy of the data on another machine has the same one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from titan.data import progress
from titan.data.documents import Source, Tally
from titan.data.encode import default_workers, encode_all
from titan.data.encode_worker import Encoding
from titan.data.errors import DataError
from titan.data.sources import open_source
from titan.data.tokenizer import Tokenizer, load, markers

if TYPE_CHECKING:
    from titan.config.schema_model import Model
    from titan.config.schema_training import Training

log = logging.getLogger("titan.data")

FORMAT = 1
"""Part of the key: raised when the files, or what becomes of a text, change."""


@dataclass(frozen=True)
class Corpus:
    """All tokens of the data.

    Attributes:
        tokens: (tokens,) uint16 or uint32, memory-mapped.
        offsets: (documents + 1,) int64, memory-mapped.
        fingerprint: hash of both.
        tokenizer_fingerprint: of the tokenizer that made them.
    """

    tokens: NDArray[np.unsignedinteger]
    offsets: NDArray[np.int64]
    fingerprint: str
    tokenizer_fingerprint: str


def root(cache_folder: str | None) -> Path:
    """`training.cache_folder`, else $TITAN_CACHE, $XDG_CACHE_HOME/titan, ~/.cache/titan."""
    if cache_folder is not None:
        return Path(cache_folder).expanduser()
    if named := os.environ.get("TITAN_CACHE"):
        return Path(named).expanduser()
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named).expanduser() / "titan"
    return Path.home() / ".cache" / "titan"


def prepare(training: Training, model: Model) -> Path:
    """The folder of this data's tokens, written first where it is not there. Raises DataError."""
    tokenizer = load(model)
    before, after = markers(training, tokenizer)
    source = open_source(training)
    key = _key([FORMAT, source.identity, tokenizer.fingerprint, before, after])
    parent = root(training.cache_folder)
    folder = parent / key
    if folder.is_dir():
        return folder
    encoding = Encoding(
        tokenizer.folder.absolute(), tuple(before), tuple(after), "<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4"
    )
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with _lock(parent / f".{key}.lock") as locked:
            if not folder.is_dir():
                if locked:  # whoever wrote here held the lock, so it is dead
                    for left in parent.glob(f".{key}-*"):
                        shutil.rmtree(left, ignore_errors=True)
                _write(folder, source, tokenizer, encoding, training.tokenizer_workers or default_workers())
    except OSError as error:
        raise DataError(
            f"tokenized data cannot be written to {parent}: {error}. Set training.cache_folder or TITAN_CACHE to a "
            "folder with room."
        ) from error
    return folder


def open_corpus(folder: Path) -> Corpus:
    """Memory-maps what `prepare` wrote. Raises DataError where it has been damaged since."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        tokens = np.memmap(folder / "tokens.bin", dtype=meta["dtype"], mode="r")
        offsets = np.load(folder / "offsets.npy", mmap_mode="r")
        if len(tokens) != meta["tokens"] or len(offsets) != meta["documents"] + 1:
            raise ValueError(f"{len(tokens)} tokens where meta.json counts {meta['tokens']}")
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder}: damaged tokenized data: {error}. Delete the folder; it is made anew.") from error
    return Corpus(tokens, offsets, meta["fingerprint"], meta["tokenizer_fingerprint"])


def _write(folder: Path, source: Source, tokenizer: Tokenizer, encoding: Encoding, workers: int) -> None:
    """Tokenizes into a temporary folder and renames it."""
    begun = time.monotonic()
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        meta = _write_tokens(temporary, source, tokenizer, encoding, workers)
        _write_synced(temporary / "meta.json", (json.dumps(meta, indent=2) + "\n").encode())
        _sync(temporary)
        temporary.chmod(0o777 & ~_umask())  # mkdtemp makes it private; other users may share the cache
        try:
            temporary.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            log.info("another process has written %s meanwhile; using that", folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    seconds = time.monotonic() - begun
    log.info("%s: %d documents, %d tokens in %.1f s", source.name, meta["documents"], meta["tokens"], seconds)


def _write_tokens(
    folder: Path, source: Source, tokenizer: Tokenizer, encoding: Encoding, workers: int
) -> dict[str, Any]:
    """Writes tokens.bin and offsets.npy; returns meta.json's content."""
    tally, digest = Tally(), hashlib.sha256()
    offsets = array("q", [0])  # 8 bytes a document, of which there can be 10^8
    count = 0
    encoding_all = encode_all(source.documents(tally), tokenizer, encoding, workers)
    # Closed here and not by the garbage collector: an exception would keep it, and its processes, alive.
    with (
        closing(encoding_all) as batches,
        (folder / "tokens.bin").open("wb") as file,
        progress.shown(source, workers) as advance,
    ):
        for encoded in batches:
            raw = encoded.ids.tobytes()
            file.write(raw)
            digest.update(raw)
            offsets.extend(count + end for end in encoded.ends)
            count += len(encoded.ids)
            advance(tally)
        file.flush()
        os.fsync(file.fileno())
    tally.refuse_if_empty(source.name)
    if count < 2:
        raise DataError(f"{source.name}: {count} token in all; at least 2 are needed, one to read and one to predict.")
    if tally.skipped:
        log.warning("%s: skipped %s", source.name, tally)
    table = np.array(offsets, dtype="<i8")
    digest.update(table.tobytes())
    with (folder / "offsets.npy").open("wb") as file:
        np.save(file, table)
        file.flush()
        os.fsync(file.fileno())
    return {
        "format": FORMAT,
        "source": source.name,
        "dtype": encoding.dtype,
        "documents": tally.documents,
        "tokens": count,
        "fingerprint": digest.hexdigest()[:32],
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "skipped": tally.skipped,
    }


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Holds an exclusive lock, which the kernel frees when its process ends however it ends; False where the file
    system has none. The file stays: removing it would let two processes hold a lock on two files of one name."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another process is tokenizing the same data; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            log.warning("%s: no file lock here (%s); processes may tokenize the same data twice", path, error)
            yield False
            return
        yield True


def _key(identity: list[Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Makes the names in a folder last through a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
