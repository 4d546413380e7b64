"""A folder wherever it is: on this machine's file systems, or behind an fsspec URI (s3://bucket/run/checkpoint).

What checkpoints need of a storage and no more: a listing with sizes, reading a range, making a file that is safe when
`create` ends. Files are addressed as (folder, plain name), so that no path of a manifest or an index can lead out of
its folder. Renames and links exist on local folders only, and `commit_local` alone knows of them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_URI = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


@dataclass(frozen=True)
class Listing:
    """What a folder holds: files with their sizes in bytes, folders (linked ones too), and which names are links."""

    files: Mapping[str, int]
    folders: frozenset[str]
    links: frozenset[str]


class Folder(ABC):
    """A folder that may not exist yet. `str` of it is what a user would write."""

    name: str
    parallel_reads: int
    """How many ranges to ask for at once: storage behind a network answers each of them late."""

    @abstractmethod
    def __truediv__(self, name: str) -> Folder: ...

    @abstractmethod
    def listing(self) -> Listing | None:
        """What is in it now; None where it does not exist. Raises NotADirectoryError where it is a file."""

    @abstractmethod
    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """A file, or a range of it: fewer bytes where it ends before. Raises FileNotFoundError."""

    @abstractmethod
    def create(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """A file to write once from its beginning; it is on storage when the context ends without an error."""

    def write(self, name: str, data: bytes) -> None:
        with self.create(name) as file:
            file.write(data)


Where = Folder | Path | str


def is_uri(text: str) -> bool:
    return _URI.match(text) is not None


def at(where: Where) -> Folder:
    """The folder at a path or a URI.

    Raises:
        CheckpointRefused: no fsspec file system is known or installed for that URI.
    """
    from titan.checkpoint.storage_local import LocalFolder

    if isinstance(where, Folder):
        return where
    if isinstance(where, Path):
        return LocalFolder(where)
    match = _URI.match(where)
    if match is None:
        return LocalFolder(Path(where))
    if match[1].lower() in ("file", "local"):
        return LocalFolder(Path(where[match.end() :]))
    from titan.checkpoint.storage_remote import remote

    return remote(where)


def under(run_folder: Path, folder: str) -> Folder:
    """What `checkpoint.folder` means: inside the run folder, unless it is a URI or an absolute path."""
    return at(folder if is_uri(folder) else run_folder / folder)
