"""`training.dataset_path` to files in a fixed order, and the reading of one file, compressed or not.

A file is taken as it is, a folder is searched in depth for the suffixes of its kind, a glob is expanded (`**` goes in
depth). Hidden files and folders below a folder are left out. Files are sorted by path, so that every machine sees one
order. What cannot be read is a DataError that names the file, before anything has been written.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from titan.data.errors import DataError

COMPRESSED = (".gz", ".bz2", ".xz")


def find(dataset: str, dataset_path: str | None, suffixes: Sequence[str]) -> list[Path]:
    """Files to read, sorted. `suffixes` are what a folder is searched for. Raises DataError where there is none."""
    if dataset_path is None:
        raise DataError(
            f'training.dataset = "{dataset}" reads local files: set training.dataset_path to a file, a folder '
            "or a glob."
        )
    key = f'training.dataset_path = "{dataset_path}"'
    path = Path(dataset_path).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        files = sorted(_below(path, suffixes))
        if not files:
            raise DataError(f'{key}: no {" or ".join(suffixes)} file in this folder; training.dataset is "{dataset}".')
        return files
    if glob.has_magic(dataset_path):
        files = sorted(Path(item) for item in glob.glob(str(path), recursive=True) if Path(item).is_file())
        if not files:
            raise DataError(f"{key}: no file matches (searched from {Path.cwd()}).")
        return files
    if path.exists():
        raise DataError(f"{key}: neither a file nor a folder (a pipe or a device): data is read more than once.")
    raise DataError(f"{key}: no such file or folder (searched from {Path.cwd()}).")


def stamp(files: Sequence[Path]) -> list[list[Any]]:
    """Path, size and time of change of each file: what tells on this machine whether the data is still the same."""
    stamps: list[list[Any]] = []
    for path in files:
        with readable(path):
            found = path.stat()
            stamps.append([str(path.absolute()), found.st_size, found.st_mtime_ns])
    return stamps


def total_size(files: Sequence[Path]) -> int:
    """Bytes on disk. Raises DataError where a file cannot be reached."""
    size = 0
    for path in files:
        with readable(path):
            size += path.stat().st_size
    return size


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turns what goes wrong in reading this file into a DataError that names it."""
    try:
        yield
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


@contextmanager
def opened(path: Path) -> Iterator[tuple[BufferedIOBase, BufferedIOBase]]:
    """(content, file): the content is decompressed where the name ends in .gz, .bz2 or .xz; the file's `tell()` says
    how far reading is. Raises DataError, also from the reading inside the `with` block."""
    with readable(path), path.open("rb") as file:
        if path.suffix == ".gz":
            with gzip.open(file) as content:
                yield content, file
        elif path.suffix == ".bz2":
            with bz2.open(file) as content:
                yield content, file
        elif path.suffix == ".xz":
            with lzma.open(file) as content:
                yield content, file
        else:
            yield file, file


def plain_suffix(path: Path) -> str:
    """Suffix under the compression: .json of a.json.gz."""
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def _below(folder: Path, suffixes: Sequence[str]) -> Iterator[Path]:
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and plain_suffix(path) in suffixes and path.is_file():
            yield path
