"""Folders on this machine's file systems, shared ones among them: files are synced before they count as written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from titan.checkpoint.storage import Folder, Listing


class LocalFolder(Folder):
    """A folder at a path."""

    parallel_reads = 1

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> LocalFolder:
        return LocalFolder(self.path / name)

    def listing(self) -> Listing | None:
        files, folders, links = {}, set(), set()
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        links.add(entry.name)
                    elif entry.is_file():
                        files[entry.name] = entry.stat().st_size
                    if entry.is_dir():
                        folders.add(entry.name)
        except FileNotFoundError:
            return None
        return Listing(files, frozenset(folders), frozenset(links))

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        with open(self.path / name, "rb") as file:
            file.seek(start)
            return file.read(-1 if length is None else length)

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        with open(self.path / name, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """Flushes the names in a folder to storage."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
