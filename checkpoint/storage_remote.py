"""Folders behind fsspec: object stores, where a folder is a prefix, nothing is renamed, and a file appears whole when
it is closed.

Listings are never taken from fsspec's cache: another process, or another rank, may have written since. Credentials
and endpoints come from where the storage's own tools look (AWS_*, ~/.aws, FSSPEC_S3_ENDPOINT_URL, ...): none belongs
in a configuration that every run folder keeps a copy of.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import IO, Any

import fsspec  # type: ignore[import-untyped]

from titan.checkpoint.errors import CheckpointRefused
from titan.checkpoint.storage import Folder, Listing

_WITHOUT_FOLDERS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss", "tos", "r2"}
"""Object stores: to make a folder there would mean to make a bucket, which a typing error must not."""


class RemoteFolder(Folder):
    """A prefix of an fsspec file system."""

    parallel_reads = 8

    def __init__(self, files: Any, path: str) -> None:
        self._files = files
        self._path = path.rstrip("/")
        self.name = self._path.rsplit("/", 1)[-1]

    def __str__(self) -> str:
        return str(self._files.unstrip_protocol(self._path))

    def __truediv__(self, name: str) -> RemoteFolder:
        return RemoteFolder(self._files, f"{self._path}/{name}")

    def listing(self) -> Listing | None:
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._path, detail=True)
        except FileNotFoundError:
            return None
        files: dict[str, int] = {}
        folders: set[str] = set()
        for one in found:
            path = one["name"].rstrip("/")
            if path.strip("/") == self._path.strip("/"):
                if one["type"] == "file" and one["size"]:  # of size 0 it marks the prefix as a folder
                    raise NotADirectoryError(f"{self} is a file, not a folder")
            elif one["type"] == "directory":
                folders.add(path.rsplit("/", 1)[-1])
            else:
                files[path.rsplit("/", 1)[-1]] = one["size"]
        return Listing(files, frozenset(folders), frozenset())

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        end = None if length is None else start + length
        return bytes(self._files.cat_file(f"{self._path}/{name}", start=start, end=end))

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        with self._files.open(f"{self._path}/{name}", "wb") as file:
            yield file

    def make(self) -> None:
        """Makes the folder, where the storage has such a thing."""
        if self._has_folders:
            self._files.makedirs(self._path, exist_ok=True)

    def remove(self, first: str) -> None:
        """Removes the files directly in it, `first` before the others, and then the folder. No error where there is
        nothing. One by one, since fsspec's `rm` would take brackets in the name of a run for a pattern.
        """
        listing = self.listing()
        if listing is None:
            return
        if first in listing.files:
            self._remove_file(first)
        with ThreadPoolExecutor(self.parallel_reads) as pool:
            list(pool.map(self._remove_file, set(listing.files) - {first}))  # raises what one of them raised
        if self._has_folders and not listing.folders:
            self._files.rmdir(self._path)

    def _remove_file(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm_file(f"{self._path}/{name}")

    @property
    def _has_folders(self) -> bool:
        protocols = self._files.protocol
        return not _WITHOUT_FOLDERS & set([protocols] if isinstance(protocols, str) else protocols)


def remote(uri: str) -> RemoteFolder:
    """The folder at a URI.

    Raises:
        CheckpointRefused: no file system is known for its protocol, or its package is not installed.
    """
    try:
        files, path = fsspec.core.url_to_fs(uri)
    except (ValueError, ImportError) as error:
        raise CheckpointRefused(f"{uri} cannot be used as a checkpoint folder: {error}") from None
    return RemoteFolder(files, path)
