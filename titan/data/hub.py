"""Source by Hugging Face name or local dataset folder, through `datasets`.

`datasets` honours HF_TOKEN and HF_HUB_OFFLINE, and runs no code from a dataset (never `trust_remote_code`). A folder
written by `save_to_disk` is read too. A dataset of the hub is known by what the config says of it (name, config,
split), so that a second start asks no server; the tokenized copy stays what it was until its cache folder is deleted,
whatever the hub does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titan.data import json_files, parquet_files, paths, text_files
from titan.data.documents import Tally
from titan.data.errors import DataError

if TYPE_CHECKING:
    from titan.config.schema_training import Training

_ROWS = 1024
_FILES = (*json_files.SUFFIXES, *text_files.SUFFIXES, *parquet_files.SUFFIXES, ".csv", ".arrow")
_KNOWN = {"c4": ("allenai/c4", "en", "train"), "c4_validation": ("allenai/c4", "en", "validation")}
"""torchtitan's names for a dataset, its configuration and split; what a configuration sets itself goes before."""


class HubDataset:
    """Documents of one split of a Hugging Face dataset."""

    identity: list[Any]
    total: int | None = None

    def __init__(self, training: Training) -> None:
        """Raises DataError where `dataset_path` is no folder; the dataset itself is looked up by `documents`."""
        self._training = training
        where = training.dataset_path
        if training.dataset == "c4_test" and where is None:
            raise DataError(
                'training.dataset = "c4_test": a file in torchtitan\'s own repository. Set training.dataset_path to '
                'its folder, or training.dataset to "c4" (from the network) or "python_stdlib" (here).'
            )
        self._path, self._config, self._split = training.dataset, training.dataset_config, training.dataset_split
        if where is None and training.dataset in _KNOWN:
            self._path, config, split = _KNOWN[training.dataset]
            self._config = self._config or config
            self._split = split if self._split == "train" else self._split
        if where is not None:
            if not Path(where).expanduser().is_dir():
                raise DataError(
                    f'training.dataset_path = "{where}": no such folder; training.dataset = "{training.dataset}" needs '
                    'one. To read files, set training.dataset to "json", "text" or "parquet".'
                )
            self._path = str(Path(where).expanduser())
        self.name = f'dataset "{self._path}", split "{self._split}"'
        wanted = [self._config, self._split, training.text_column]
        folder = Path(self._path).expanduser()
        self._local = folder.is_dir()
        if self._local:
            self._path = str(folder)
            self.identity = ["local dataset", *wanted, paths.stamp(sorted(p for p in folder.rglob("*") if p.is_file()))]
        elif _is_a_path(self._path):
            raise DataError(
                f'training.dataset = "{self._path}": no such folder, and no name of a dataset. To read files, set '
                'it to "json", "text" or "parquet", and training.dataset_path to the file or folder.'
            )
        else:
            self.identity = ["hub dataset", self._path, *wanted]

    def documents(self, tally: Tally) -> Iterator[str]:
        """Documents in the dataset's order. Raises DataError where it cannot be loaded, or has no such column."""
        dataset = self._load()
        column = self._training.text_column
        if column not in dataset.column_names:
            have = ", ".join(dataset.column_names) or "none"
            raise DataError(f'{self.name}: no column for training.text_column = "{column}"; it has: {have}.')
        self.total = len(dataset)
        row = 0
        for batch in dataset.select_columns([column]).with_format("arrow").iter(batch_size=_ROWS):
            for value in parquet_files.texts(batch.column(0)):
                row += 1
                if isinstance(value, UnicodeDecodeError):
                    tally.skip("not UTF-8", f"row {row}")
                elif (text := tally.usable(value, f"row {row}")) is not None:
                    yield text
            tally.done = row

    def _load(self) -> Any:
        import datasets  # type: ignore[import-untyped]  # here: seconds that other sources need not wait

        if not sys.stderr.isatty():
            datasets.disable_progress_bars()
        split = self._split
        try:
            if self._local and any((Path(self._path) / name).is_file() for name in ("state.json", "dataset_dict.json")):
                loaded = datasets.load_from_disk(self._path)
                if isinstance(loaded, datasets.DatasetDict):
                    if split not in loaded:
                        raise DataError(f"{self.name}: no such split; it has: {', '.join(loaded)}.")
                    return loaded[split]
                return loaded
            return datasets.load_dataset(self._path, self._config, split=split)
        except DataError:
            raise
        except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
            reason = str(error).strip() or type(error).__name__
            raise DataError(
                f"{self.name}: cannot be loaded: {reason}. Check training.dataset and the network, or set "
                'training.dataset to "python_stdlib", or to "json", "text" or "parquet" with dataset_path.'
            ) from error


def _is_a_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~")) or paths.plain_suffix(Path(name)) in _FILES
