"""Source `json`: local JSON lines (.jsonl, .ndjson, .json) or one JSON array of objects a file (.json).

Read here line by line rather than through `datasets`, whose reader infers one schema for all, and reports neither the
line nor the file of what it refuses. A line that is not a JSON object is refused with file and line, since the file is
cut or is of another kind; an object without usable text is skipped and counted (documents.py). Blank lines, CRLF and a
byte-order mark are part of the format. Lines stream; an array is held whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from titan.data import paths
from titan.data.documents import Tally
from titan.data.errors import DataError

SUFFIXES = (".jsonl", ".ndjson", ".json")
_BOM = b"\xef\xbb\xbf"


class JsonFiles:
    """Documents of the field `text_column` of each row."""

    def __init__(self, dataset_path: str | None, text_column: str) -> None:
        """Raises DataError where there is no file."""
        self._files = paths.find("json", dataset_path, SUFFIXES)
        self._column = text_column
        self.name = f'JSON files of "{dataset_path}"'
        self.total = paths.total_size(self._files)
        self.identity: list[Any] = ["json", text_column, paths.stamp(self._files)]

    def documents(self, tally: Tally) -> Iterator[str]:
        """Documents in file and row order. Raises DataError with file and line where a row is no JSON object."""
        for path in self._files:
            before = tally.done
            with paths.opened(path) as (content, file):
                for row, place in self._rows(content, path, tally):
                    tally.done = before + file.tell()
                    if (text := self._text(row, place, tally)) is not None:
                        yield text
                tally.done = before + file.tell()

    def _rows(self, content: BufferedIOBase, path: Path, tally: Tally) -> Iterator[tuple[Any, str]]:
        head = b""
        for number, line in enumerate(content, start=1):
            if number == 1:
                line = line.removeprefix(_BOM)
            if not line.strip():
                continue
            if not head and (head := line.lstrip()[:1]) == b"[" and paths.plain_suffix(path) == ".json":
                whole = line + content.read()
                for index, row in enumerate(_parse(whole, f"{path} (a JSON array)"), start=1):
                    yield row, f"{path} element {index}"
                return
            place = f"{path} line {number}"
            try:
                text = line.decode()
            except UnicodeDecodeError:
                tally.skip("not UTF-8", place)
                continue
            yield _parse(text, place), place

    def _text(self, row: Any, place: str, tally: Tally) -> str | None:
        if not isinstance(row, dict):
            raise DataError(
                f"{place}: a JSON {type(row).__name__} where an object belongs; a row is "
                f'{{"{self._column}": "..."}} (training.text_column = "{self._column}").'
            )
        if self._column not in row:
            fields = ", ".join(map(str, list(row)[:6])) or "none"
            tally.skip(f'without the field "{self._column}" of training.text_column', f"{place}, fields: {fields}")
            return None
        return tally.usable(row[self._column], place)


def _parse(text: str | bytes, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: bad JSON, bad UTF-8, an endless number
        raise DataError(f"{place}: not JSON: {error}. Each row is one JSON object; is the file cut?") from error
