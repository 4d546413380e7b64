"""The tokenized data on disk: complete or not there, whatever is killed and however many prepare at once."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.conftest import MakeTraining, WriteRows
from tests.data.test_encode import documents
from titan.config.schema_model import Model
from titan.config.schema_training import Training
from titan.data import DataError, cache, open_rows, prepare

ROOT = Path(__file__).parents[2]
# Prepares the section given as JSON when told to on standard input; says which processes it starts and what came out.
CHILD = """
import json, logging, os, sys
from titan.config.schema_model import Model
from titan.config.schema_training import Training
from titan.data import cache, encode_worker

logging.basicConfig(level=logging.INFO, format="%(message)s")
popen = encode_worker.subprocess.Popen

def announced(*arguments, **keywords):
    process = popen(*arguments, **keywords)
    print("worker", process.pid, flush=True)
    return process

encode_worker.subprocess.Popen = announced
print("ready", flush=True)
sys.stdin.readline()
try:
    print("fingerprint", cache.open_corpus(cache.prepare(Training(**json.loads(sys.argv[1])), Model())).fingerprint)
except ValueError as error:
    sys.exit(str(error))
"""


def child(section: Training, **keywords: Any) -> subprocess.Popen[str]:
    """A process that waits to prepare this section."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, section.model_dump_json(exclude={"dataloader"})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        **keywords,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def left_over(section: Training) -> list[str]:
    """Names in the cache that are neither finished data nor a lock."""
    return [path.name for path in Path(section.cache_folder or "").glob(".*") if path.suffix != ".lock"]


def finished(section: Training) -> list[Path]:
    return [path for path in Path(section.cache_folder or "").glob("[!.]*")]


@pytest.mark.quick
def test_data_is_tokenized_once(
    training: MakeTraining, jsonl: WriteRows, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = training(dataset="json", dataset_path=str(jsonl(["one", None, "two", ""])))
    caplog.set_level(logging.INFO)
    rows = open_rows(section, Model(), 0)
    assert "2 documents" in caplog.text
    assert "skipped 1 null (first: " in caplog.text
    monkeypatch.setattr(cache, "_write", None)
    prepare(section, Model())
    again = open_rows(section, Model(), 0)
    assert np.array_equal(rows.fetch(0, 3), again.fetch(0, 3))
    assert rows.fingerprint == again.fingerprint
    meta = json.loads((finished(section)[0] / "meta.json").read_text())
    assert meta["documents"] == 2
    assert meta["skipped"]["null"][0] == 1


@pytest.mark.quick
def test_other_data_or_settings_have_a_folder_of_their_own(training: MakeTraining, jsonl: WriteRows) -> None:
    path = str(jsonl(["one", "two"]))
    folders = [
        cache.prepare(training(dataset="json", dataset_path=path, **v), Model()) for v in ({}, {"add_bos": False})
    ]
    jsonl(["one", "twp"])
    os.utime(path, (1, 1))  # the same size
    folders.append(cache.prepare(training(dataset="json", dataset_path=path), Model()))
    assert len(set(folders)) == 3
    # What rows are cut to does not matter here.
    other_rows = training(dataset="json", dataset_path=path, seq_len=99, shuffle=False, mask_document_boundaries=True)
    assert cache.prepare(other_rows, Model()) == folders[2]


@pytest.mark.quick
def test_the_fingerprint_is_that_of_the_content_on_any_machine(
    tmp_path: Path, training: MakeTraining, jsonl: WriteRows
) -> None:
    here = jsonl(["one", "two"])
    there = tmp_path / "elsewhere" / "copy.json"
    there.parent.mkdir()
    shutil.copy(here, there)
    os.utime(there, (1, 1))
    moved = {"dataset": "json", "cache_folder": str(tmp_path / "other cache")}
    rows = [
        open_rows(training(dataset="json", dataset_path=str(here)), Model(), 0),
        open_rows(training(**moved, dataset_path=str(there)), Model(), 0),
    ]
    assert rows[0].fingerprint == rows[1].fingerprint
    changed = jsonl(["on", "etwo"], "changed.jsonl")  # the same characters, another boundary
    assert open_rows(training(dataset="json", dataset_path=str(changed)), Model(), 0).fingerprint != rows[0].fingerprint


@pytest.mark.quick
@pytest.mark.parametrize("texts", [[], ["", " ", None, 3]], ids=["no rows", "only odd rows"])
def test_data_without_text_is_refused_and_leaves_nothing(
    training: MakeTraining, jsonl: WriteRows, texts: list[Any]
) -> None:
    section = training(dataset="json", dataset_path=str(jsonl(texts)))
    with pytest.raises(DataError, match="no text to train on; skipped: ") as caught:
        prepare(section, Model())
    if texts:
        assert "2 empty (first: " in str(caught.value)
    assert finished(section) == []
    assert left_over(section) == []


@pytest.mark.quick
def test_a_bad_row_in_the_middle_leaves_nothing(training: MakeTraining, jsonl: WriteRows) -> None:
    path = jsonl(["fine"] * 100)
    path.write_text(path.read_text() + "{broken\n")
    section = training(dataset="json", dataset_path=str(path))
    with pytest.raises(DataError, match="line 101: not JSON"):
        prepare(section, Model())
    assert finished(section) == []
    assert left_over(section) == []


@pytest.mark.quick
def test_a_single_token_is_too_little(training: MakeTraining, jsonl: WriteRows) -> None:
    section = training(dataset="json", dataset_path=str(jsonl(["a"])), add_bos=False, add_eos=False)
    with pytest.raises(DataError, match="1 token in all; at least 2 are needed"):
        prepare(section, Model())
    assert finished(section) == []


@pytest.mark.quick
def test_a_cache_folder_that_cannot_be_is_refused_by_key(
    tmp_path: Path, training: MakeTraining, jsonl: WriteRows
) -> None:
    (tmp_path / "file").write_text("")
    section = training(dataset="json", dataset_path=str(jsonl(["a"])), cache_folder=str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match=r"cannot be written to .*Set training\.cache_folder or TITAN_CACHE"):
        prepare(section, Model())


@pytest.mark.quick
@pytest.mark.parametrize("damage", ["cut", "gone", "no meta"])
def test_damaged_data_is_refused_with_the_folder_to_delete(
    training: MakeTraining, jsonl: WriteRows, damage: str
) -> None:
    section = training(dataset="json", dataset_path=str(jsonl(["some text"])))
    folder = cache.prepare(section, Model())
    if damage == "cut":
        os.truncate(folder / "tokens.bin", 4)
    else:
        (folder / ("tokens.bin" if damage == "gone" else "meta.json")).unlink()
    with pytest.raises(DataError, match=r"damaged tokenized data.*Delete the folder"):
        open_rows(section, Model(), 0)


@pytest.mark.quick
def test_the_cache_is_where_the_config_or_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TITAN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.root(None) == tmp_path / ".cache" / "titan"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache.root(None) == Path("/xdg/titan")
    monkeypatch.setenv("TITAN_CACHE", "~/own")
    assert cache.root(None) == tmp_path / "own"
    assert cache.root("/given") == Path("/given")


def test_several_processes_at_once_tokenize_once_and_read_the_same(training: MakeTraining, jsonl: WriteRows) -> None:
    section = training(dataset="json", dataset_path=str(jsonl(documents(1000))), tokenizer_workers=1)
    processes = [child(section) for _ in range(3)]
    for process in processes:
        go(process)
    done = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], done
    assert len({out for out, _ in done}) == 1
    assert sum("tokenizing" in error for _, error in done) == 1 + sum("waiting for it" in error for _, error in done)
    assert sum("documents" in error for _, error in done) == 1
    assert len(finished(section)) == 1
    assert left_over(section) == []


@pytest.mark.quick
def test_without_file_locks_the_first_writer_wins(
    training: MakeTraining, jsonl: WriteRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    section = training(dataset="json", dataset_path=str(jsonl(["one", "two"])))
    write = cache._write_tokens

    def overtaken(folder: Path, *arguments: Any) -> dict[str, Any]:
        monkeypatch.setattr(cache, "_write_tokens", write)
        meta = write(folder, *arguments)
        prepare(section, Model())  # another process, from begin to end
        return meta

    monkeypatch.setattr(cache, "_write_tokens", overtaken)
    rows = open_rows(section, Model(), 0)
    assert rows.rows_per_epoch >= 1
    assert len(finished(section)) == 1
    assert left_over(section) == []


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # where nobody reaps orphans a dead one stays as a zombie
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_a_killed_writer_leaves_no_process_and_nothing_that_is_picked_up(
    training: MakeTraining, jsonl: WriteRows
) -> None:
    path = jsonl(documents(5000))
    section = training(dataset="json", dataset_path=str(path), tokenizer_workers=2)
    process = child(section)
    go(process)
    assert process.stdout is not None
    workers = [int(process.stdout.readline().split()[1]) for _ in range(2)]
    deadline = time.monotonic() + 30
    while not any(file.stat().st_size for file in Path(section.cache_folder or "").glob(".*/tokens.bin")):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert finished(section) == []
    assert left_over(section) != []  # it was in the middle
    while any(alive(worker) for worker in workers):
        assert time.monotonic() < deadline, "a tokenizing process outlived its parent"
        time.sleep(0.01)

    rows = open_rows(section, Model(), 0)  # the lock of the dead is free
    assert left_over(section) == []
    alone = training(
        dataset="json", dataset_path=str(path), tokenizer_workers=1, cache_folder=f"{section.cache_folder}2"
    )
    assert rows.fingerprint == open_rows(alone, Model(), 0).fingerprint


def test_a_full_disk_is_one_message_and_leaves_nothing(training: MakeTraining, jsonl: WriteRows) -> None:
    import resource

    section = training(dataset="json", dataset_path=str(jsonl(documents(500))), tokenizer_workers=1)
    process = child(section, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)))
    go(process)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in error
    assert "File too large. Set training.cache_folder or TITAN_CACHE to a folder with room." in error
    assert finished(section) == []
    assert left_over(section) == []
