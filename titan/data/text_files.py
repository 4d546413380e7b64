"""Source `text`: local text files, one document a file (.txt, .text, .md; any name when given itself or by a glob).

A file is the unit since lines of prose are not documents; data with one document a line is what `json` is for. Files
may be compressed (.gz, .bz2, .xz). Line ends are kept as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from titan.data import paths
from titan.data.documents import Tally

SUFFIXES = (".txt", ".text", ".md")


class TextFiles:
    """One document a file under `training.dataset_path`."""

    def __init__(self, dataset_path: str | None) -> None:
        """Raises DataError where there is no file."""
        self._files = paths.find("text", dataset_path, SUFFIXES)
        self.name = f'text files of "{dataset_path}"'
        self.total = paths.total_size(self._files)
        self.identity: list[Any] = ["text", paths.stamp(self._files)]

    def documents(self, tally: Tally) -> Iterator[str]:
        """Text of each file; one that is not UTF-8 or empty is skipped and counted."""
        for path in self._files:
            yield from read_text(path, tally)


def read_text(path: Path, tally: Tally) -> Iterator[str]:
    """The whole file as one document, without a byte-order mark; none where it has no text. Raises DataError."""
    with paths.opened(path) as (content, file):
        raw = content.read()
        tally.done += file.tell()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        tally.skip("not UTF-8", f"{path} byte {error.start}")
        return
    if (document := tally.usable(text, str(path))) is not None:
        yield document
