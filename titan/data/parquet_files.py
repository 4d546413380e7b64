"""Source `parquet`: local Parquet files, streamed batch by batch from the one column that is read.

Through pyarrow, which `datasets` itself reads with, and not through `datasets`, which first writes a second copy of
everything. A file that is no Parquet, or has no such column of text, is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from titan.data import paths
from titan.data.documents import Tally
from titan.data.errors import DataError

SUFFIXES = (".parquet",)
_ROWS = 1024


class ParquetFiles:
    """Documents of the column `text_column`."""

    def __init__(self, dataset_path: str | None, text_column: str) -> None:
        """Raises DataError where there is no file."""
        self._files = paths.find("parquet", dataset_path, SUFFIXES)
        self._column = text_column
        self.name = f'Parquet files of "{dataset_path}"'
        self.total = paths.total_size(self._files)
        self.identity: list[Any] = ["parquet", text_column, paths.stamp(self._files)]

    def documents(self, tally: Tally) -> Iterator[str]:
        """Documents in file and row order. Raises DataError for a file that is no Parquet, or without the column."""
        for path in self._files:
            before = tally.done
            for row, value in enumerate(self._values(path), start=1):
                if isinstance(value, UnicodeDecodeError):
                    tally.skip("not UTF-8", f"{path} row {row}")
                elif (text := tally.usable(value, f"{path} row {row}")) is not None:
                    yield text
            tally.done = before + path.stat().st_size

    def _values(self, path: Path) -> Iterator[Any]:
        import pyarrow as arrow  # type: ignore[import-untyped]  # here: seconds that other sources need not wait
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]

        try:
            with paths.readable(path), parquet.ParquetFile(path) as file:
                self._check_column(path, file.schema_arrow)
                for batch in file.iter_batches(batch_size=_ROWS, columns=[self._column]):
                    yield from texts(batch.column(0))
        except arrow.ArrowException as error:
            raise DataError(f"{path}: cannot be read as Parquet: {error}") from error

    def _check_column(self, path: Path, schema: Any) -> None:
        key = f'training.text_column = "{self._column}"'
        if self._column not in schema.names:
            raise DataError(f"{path}: no column for {key}; it has: {', '.join(schema.names) or 'none'}.")
        kind = str(schema.field(self._column).type)
        if "string" not in kind and kind != "null":
            raise DataError(f"{path}: the column of {key} holds {kind}, not text (string).")


def texts(column: Any) -> Iterator[Any]:
    """Values of an Arrow column; where one is not UTF-8, its UnicodeDecodeError."""
    try:
        yield from column.to_pylist()
    except UnicodeDecodeError:
        for scalar in column:
            try:
                yield scalar.as_py()
            except UnicodeDecodeError as error:
                yield error
