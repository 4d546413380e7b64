"""Parquet files and Hugging Face datasets from local folders, through the libraries themselves, without a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets  # type: ignore[import-untyped]
import pyarrow as arrow  # type: ignore[import-untyped]
import pytest
from pyarrow import parquet

from tests.data.conftest import MakeTraining
from titan.config.schema_model import Model
from titan.data import DataError, open_rows
from titan.data.documents import Tally
from titan.data.sources import open_source


@pytest.fixture(autouse=True)
def own_library_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` writes its copies below this test's folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


def read(section: Any) -> tuple[list[str], Tally]:
    tally = Tally()
    source = open_source(section)
    texts = list(source.documents(tally))
    assert tally.done == source.total
    return texts, tally


def test_parquet_rows_are_read_in_order_and_odd_ones_counted(tmp_path: Path, training: MakeTraining) -> None:
    parquet.write_table(arrow.table({"text": ["a", None, "", "b"], "id": [1, 2, 3, 4]}), tmp_path / "1.parquet")
    binary = arrow.array([b"c", b"\xff", b"d"]).view(arrow.string())  # a writer that never checked its bytes
    parquet.write_table(arrow.table({"text": binary}), tmp_path / "2.parquet")
    large = [f"row {index}" for index in range(3000)]
    parquet.write_table(arrow.table({"text": arrow.array(large, arrow.large_string())}), tmp_path / "3.parquet")
    found, tally = read(training(dataset="parquet", dataset_path=str(tmp_path)))
    assert found == ["a", "b", "c", "d", *large]
    assert tally.skipped == {
        "null": (1, f"{tmp_path / '1.parquet'} row 2"),
        "empty": (1, f"{tmp_path / '1.parquet'} row 3"),
        "not UTF-8": (1, f"{tmp_path / '2.parquet'} row 2"),
    }


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        ("body", 'no column for training.text_column = "body"; it has: text, id'),
        ("id", "holds int64, not text"),
    ],
)
def test_a_parquet_file_without_the_column_is_refused_with_those_it_has(
    tmp_path: Path, training: MakeTraining, column: str, complaint: str
) -> None:
    parquet.write_table(arrow.table({"text": ["a"], "id": [1]}), tmp_path / "1.parquet")
    with pytest.raises(DataError) as caught:
        read(training(dataset="parquet", dataset_path=str(tmp_path / "1.parquet"), text_column=column))
    assert complaint in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not parquet at all", "cut"])
def test_a_file_that_is_no_parquet_is_refused_by_name(tmp_path: Path, training: MakeTraining, content: Any) -> None:
    path = tmp_path / "1.parquet"
    parquet.write_table(arrow.table({"text": ["a" * 1000]}), path)
    path.write_bytes(path.read_bytes()[:-50] if content == "cut" else content)
    with pytest.raises(DataError, match=r"1\.parquet: cannot be read"):
        read(training(dataset="parquet", dataset_path=str(path)))


def test_a_local_dataset_folder_goes_through_datasets(tmp_path: Path, training: MakeTraining) -> None:
    folder = tmp_path / "set"
    (folder / "data").mkdir(parents=True)
    parquet.write_table(arrow.table({"body": ["a", None, "b"]}), folder / "data" / "train-00000-of-00001.parquet")
    parquet.write_table(arrow.table({"body": ["held out"]}), folder / "data" / "validation-00000-of-00001.parquet")
    named = training(dataset=str(folder), text_column="body")
    found, tally = read(named)
    assert found == ["a", "b"]
    assert tally.skipped == {"null": (1, "row 2")}
    # The older way: any name, and the folder as its path; and another split.
    found, _ = read(training(dataset="any", dataset_path=str(folder), text_column="body", dataset_split="validation"))
    assert found == ["held out"]
    rows = open_rows(named, Model(), seed=0)
    assert (rows.fetch(0, 1)[1] != -100).sum() == 5  # <bos> a <eos> <bos> b <eos>


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"text_column": "text"}, 'no column for training.text_column = "text"; it has: body'),
        ({"dataset_split": "test"}, 'split "test": cannot be loaded'),
        ({"dataset_config": "en"}, "cannot be loaded"),
    ],
)
def test_what_a_dataset_lacks_is_refused_by_name(
    tmp_path: Path, training: MakeTraining, values: dict[str, str], complaint: str
) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    parquet.write_table(arrow.table({"body": ["a"]}), folder / "train.parquet")
    with pytest.raises(DataError) as caught:
        read(training(**{"dataset": str(folder), "text_column": "body", **values}))
    assert complaint in str(caught.value)


def test_a_folder_that_was_saved_to_disk_is_read(tmp_path: Path, training: MakeTraining) -> None:
    one = datasets.Dataset.from_dict({"text": ["a", "b"]})
    one.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": one}).save_to_disk(tmp_path / "many")
    for name in ("one", "many"):
        found, _ = read(training(dataset=str(tmp_path / name)))
        assert found == ["a", "b"]
    with pytest.raises(DataError, match="no such split; it has: train"):
        read(training(dataset=str(tmp_path / "many"), dataset_split="test"))


def test_code_in_a_dataset_folder_is_not_run(tmp_path: Path, training: MakeTraining) -> None:
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(DataError, match="cannot be loaded"):
        read(training(dataset=str(folder)))
    assert not (tmp_path / "ran").exists()


def test_offline_a_dataset_of_the_hub_is_refused_in_seconds_and_leaves_no_tokens(tmp_path: Path) -> None:
    code = """
import sys
from titan.config.schema_model import Model
from titan.config.schema_training import Training
from titan.data import DataError, prepare
try:
    prepare(Training(dataset="nobody/no-such-dataset", cache_folder=sys.argv[1]), Model())
except DataError as error:
    print(error)
"""
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert 'dataset "nobody/no-such-dataset", split "train": cannot be loaded' in done.stdout, done.stderr
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("name", "more", "asked"),
    [
        ("c4", {}, ("allenai/c4", "en", "train")),
        ("c4_validation", {}, ("allenai/c4", "en", "validation")),
        ("c4", {"dataset_config": "de", "dataset_split": "validation"}, ("allenai/c4", "de", "validation")),
        ("c4_validation", {"dataset_split": "test"}, ("allenai/c4", "en", "test")),
        ("nobody/other", {}, ("nobody/other", None, "train")),
    ],
)
def test_torchtitans_names_are_those_of_the_hub(
    name: str,
    more: dict[str, str],
    asked: tuple[str, str | None, str],
    training: MakeTraining,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def load_dataset(path: str, config: str | None, split: str) -> Any:
        calls.append((path, config, split))
        return datasets.Dataset.from_dict({"text": ["one", "two"]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read(training(dataset=name, **more))[0] == ["one", "two"]
    assert calls == [asked]


def test_torchtitans_test_file_is_refused_before_anything_is_read_unless_its_folder_is_given(
    tmp_path: Path, training: MakeTraining
) -> None:
    with pytest.raises(DataError, match=r'"c4_test": a file in torchtitan.*dataset_path'):
        open_source(training(dataset="c4_test"))
    (tmp_path / "data.json").write_text('{"text": "here"}\n')
    assert read(training(dataset="c4_test", dataset_path=str(tmp_path)))[0] == ["here"]
