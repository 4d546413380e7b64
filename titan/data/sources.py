"""`training.dataset` to the source that it names.

"python_stdlib", "json", "text" and "parquet" are ours; any other name is a Hugging Face dataset or a local folder of
one. Opening a source lists its files and refuses what is missing; it reads no text, so that `titan check` can ask too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from titan.data.documents import Source
from titan.data.errors import DataError
from titan.data.hub import HubDataset
from titan.data.json_files import JsonFiles
from titan.data.parquet_files import ParquetFiles
from titan.data.stdlib import Stdlib
from titan.data.text_files import TextFiles

if TYPE_CHECKING:
    from titan.config.schema_training import Training


def open_source(training: Training) -> Source:
    """The source of documents. Raises DataError where its files are missing."""
    name, path = training.dataset, training.dataset_path
    if name == "python_stdlib":
        if path is not None:
            raise DataError(
                f'training.dataset_path = "{path}": has no effect with training.dataset = "python_stdlib". Remove it, '
                'or set training.dataset to "json", "text" or "parquet".'
            )
        return Stdlib()
    if name == "json":
        return JsonFiles(path, training.text_column)
    if name == "text":
        return TextFiles(path)
    if name == "parquet":
        return ParquetFiles(path, training.text_column)
    return HubDataset(training)
