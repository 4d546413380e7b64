"""Sources: which files, in which order, and what becomes of odd text: skipped with a count, or refused with file and
line (C20)."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data.conftest import MakeTraining, WriteRows
from titan.data import DataError
from titan.data.documents import Tally
from titan.data.sources import open_source
from titan.data.stdlib import Stdlib

pytestmark = pytest.mark.quick


def read(section: Any) -> tuple[list[str], Tally]:
    """All documents of the section's source, and the tally."""
    tally = Tally()
    source = open_source(section)
    texts = list(source.documents(tally))
    assert tally.documents == len(texts)
    assert tally.done == source.total
    return texts, tally


ODD_ROWS: list[tuple[str, bytes, list[str], dict[str, int]]] = [
    ("empty", b'{"text": ""}', [], {"empty": 1}),
    ("whitespace", b'{"text": " \\n\\t\\u00a0"}', [], {"empty": 1}),
    ("null", b'{"text": null}', [], {"null": 1}),
    ("number", b'{"text": 123}', [], {"int, not text": 1}),
    ("list", b'{"text": ["a"]}', [], {"list, not text": 1}),
    ("missing field", b'{"body": "a", "id": 3}', [], {'without the field "text" of training.text_column': 1}),
    ("lone surrogate", b'{"text": "a\\ud800b"}', [], {"a lone surrogate": 1}),
    ("invalid UTF-8", b'{"text": "a\xffb"}', [], {"not UTF-8": 1}),
    ("NUL", b'{"text": "a\\u0000b"}', ["a\0b"], {}),
    ("surrogate pair", b'{"text": "\\ud83d\\ude00"}', ["\U0001f600"], {}),
    ("1 MB line", b'{"text": "' + b"x" * 1_000_000 + b'"}', ["x" * 1_000_000], {}),
    ("blank line", b"\n  \n", [], {}),
    ("CRLF", b'{"text": "a\\r\\nb"}\r', ["a\r\nb"], {}),
    ("no-break", b'{"text": "None"}', ["None"], {}),
]


@pytest.mark.parametrize(("row", "texts", "skipped"), [case[1:] for case in ODD_ROWS], ids=[c[0] for c in ODD_ROWS])
def test_an_odd_row_is_skipped_with_a_count_and_a_place_or_kept_whole(
    tmp_path: Path, training: MakeTraining, row: bytes, texts: list[str], skipped: dict[str, int]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "before"}\n' + row + b'\n{"text": "after"}')
    found, tally = read(training(dataset="json", dataset_path=str(path)))
    assert found == ["before", *texts, "after"]
    assert {reason: count for reason, (count, _) in tally.skipped.items()} == skipped
    assert all(f"{path} line 2" in place for _, place in tally.skipped.values())


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (b'{"text": "cut', "line 2: not JSON"),
        (b"text", "line 2: not JSON"),
        (b'["a"]', 'line 2: a JSON list where an object belongs; a row is {"text": "..."}'),
        (b"123", "line 2: a JSON int"),
        (b"[" * 100_000, "line 2: not JSON"),
        (b'{"text": "a"} {"text": "b"}', "line 2: not JSON: Extra data"),
    ],
)
def test_a_row_that_is_no_json_object_is_refused_with_file_and_line(
    tmp_path: Path, training: MakeTraining, row: bytes, complaint: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "before"}\n' + row + b"\n")
    with pytest.raises(DataError) as caught:
        read(training(dataset="json", dataset_path=str(path)))
    assert str(path) in str(caught.value)
    assert complaint in str(caught.value)


def test_a_json_file_may_be_one_array_or_lines_with_a_byte_order_mark(tmp_path: Path, training: MakeTraining) -> None:
    rows = [{"content": "a"}, {"content": None}, {"content": "b"}]
    (tmp_path / "1.json").write_text(json.dumps(rows, indent=1), encoding="utf-8-sig")
    (tmp_path / "2.json").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8-sig")
    found, tally = read(training(dataset="json", dataset_path=str(tmp_path), text_column="content"))
    assert found == ["a", "b", "a", "b"]
    assert tally.skipped == {"null": (2, f"{tmp_path / '1.json'} element 2")}


def test_a_cut_json_array_is_refused_by_file(tmp_path: Path, training: MakeTraining) -> None:
    (tmp_path / "1.json").write_text('[{"text": "a"},\n{"text": ')
    with pytest.raises(DataError, match=r"1\.json \(a JSON array\): not JSON"):
        read(training(dataset="json", dataset_path=str(tmp_path)))


def test_text_files_are_one_document_each_in_the_order_of_their_paths(tmp_path: Path, training: MakeTraining) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    files = {
        "b.txt": b"second\r\nline\n",
        "a.txt": b"\xef\xbb\xbffirst",
        "c.txt": b" \n",
        "d.txt": b"\xff\xfe",
        "e.md": b"third",
        "sub/a.txt.gz": gzip.compress(b"fourth"),
        "other.py": b"no",
        ".hidden.txt": b"no",
        ".git/x.txt": b"no",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    found, tally = read(training(dataset="text", dataset_path=str(tmp_path)))
    assert found == ["first", "second\r\nline\n", "third", "fourth"]
    assert {reason: count for reason, (count, _) in tally.skipped.items()} == {"empty": 1, "not UTF-8": 1}


@pytest.mark.parametrize("pattern", ["**/*.jsonl", "{folder}", "in/*.jsonl*", "in/a.jsonl"])
def test_a_path_is_a_file_a_folder_or_a_glob(
    tmp_path: Path, training: MakeTraining, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "a"}')
    found, _ = read(training(dataset="json", dataset_path=pattern.replace("{folder}", str(tmp_path))))
    assert found == ["a"]


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed_files_are_read_and_a_cut_one_is_refused(
    tmp_path: Path, training: MakeTraining, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    text = "".join(json.dumps({"text": f"row {index} {index * 7919}"}) + "\n" for index in range(500))
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(compress(text.encode()))
    found, _ = read(training(dataset="json", dataset_path=str(tmp_path)))
    assert len(found) == 500
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"a\.jsonl\.\w+: cannot be read"):
        read(training(dataset="json", dataset_path=str(path)))


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"dataset": "json"}, "set training.dataset_path to a file, a folder or a glob"),
        ({"dataset": "text", "dataset_path": "nowhere"}, 'training.dataset_path = "nowhere": no such file or folder'),
        ({"dataset": "text", "dataset_path": "*.txt"}, "no file matches"),
        ({"dataset": "parquet", "dataset_path": "."}, "no .parquet file in this folder"),
        ({"dataset": "json", "dataset_path": "folder.jsonl"}, "no .jsonl or .ndjson or .json file"),
        ({"dataset": "python_stdlib", "dataset_path": "x"}, "has no effect"),
        ({"dataset": "some/name", "dataset_path": "x.json"}, 'set training.dataset to "json", "text" or "parquet"'),
        ({"dataset": "mine.jsonl.gz"}, 'no name of a dataset. To read files, set it to "json", "text" or "parquet"'),
        ({"dataset": "./mine"}, "no such folder, and no name of a dataset"),
        ({"dataset": "text", "dataset_path": "pipe"}, "neither a file nor a folder"),
    ],
)
def test_missing_data_is_refused_at_once_with_the_key(
    tmp_path: Path, training: MakeTraining, monkeypatch: pytest.MonkeyPatch, values: dict[str, str], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError) as caught:
        open_source(training(**values))
    assert complaint in str(caught.value)
    assert str(caught.value).startswith("training.")


def test_the_identity_changes_with_a_file_and_not_by_itself(training: MakeTraining, jsonl: WriteRows) -> None:
    path = jsonl(["a"])
    section = training(dataset="json", dataset_path=str(path))
    before = open_source(section).identity
    assert open_source(section).identity == before
    jsonl(["a", "b"])
    assert open_source(section).identity != before


def test_the_standard_library_is_megabytes_of_text_without_tests_and_packages() -> None:
    source, tally = Stdlib(), Tally()
    texts = list(source.documents(tally))
    size = sum(map(len, texts))
    assert 5_000_000 < size < 20_000_000
    assert not tally.skipped
    assert any("class OrderedDict" in text for text in texts)
    assert not any("test" in Path(entry[0]).parts or "site-packages" in entry[0] for entry in source.identity[2])


def test_a_python_without_source_text_is_refused_with_the_alternative(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no Python source"):
        Stdlib(tmp_path)
