"""Weights & Biases offline: what is written can be read back, a resume goes on with the same run, no login is told."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wandb.proto.wandb_internal_pb2 import Record

from titan.config.schema import Metrics as Section
from titan.metrics import Metrics
from titan.metrics.wandb_sink import WandbUnavailable

BOTH = Section(enable_wandb=True)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_PROJECT", "WANDB_ENTITY", "WANDB_TEAM", "WANDB_NAME", "WANDB_RUN_NAME", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "settings"))
    monkeypatch.setenv("HOME", str(tmp_path))  # a login of the machine is none of the test's


def records(folder: Path, runs: int = 2) -> list[Record]:
    """All that the offline runs of the folder hold, in the order of their writing; W&B's own process may still write
    when `finish` has returned, so until all of them have ended."""
    deadline = time.monotonic() + 20
    while True:
        found = written(folder)
        if sum(record.HasField("exit") for record in found) == runs:
            return found
        assert time.monotonic() < deadline, "the runs did not end"
        time.sleep(0.05)


def written(folder: Path) -> list[Record]:
    found = []
    for path in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        for data in entries(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            found.append(record)
    return found


def entries(content: bytes) -> Iterator[bytes]:
    """Entries of a log in LevelDB's format: 7 bytes of header, then blocks of 32 KiB of pieces, each with checksum,
    length and type (1 whole, 2 first, 3 middle, 4 last)."""
    block, position, entry = 1 << 15, 7, b""
    while position + 7 <= len(content):
        if block - position % block < 7:
            position += block - position % block
            continue
        length, kind = struct.unpack_from("<HB", content, position + 4)
        entry += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield entry
            entry = b""


def history(folder: Path) -> list[dict[str, Any]]:
    rows = [record.history for record in records(folder) if record.HasField("history")]
    return [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in row.item} for row in rows]


def test_steps_values_and_configuration_can_be_read_back_and_a_resume_is_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    for steps, resumed in ((range(1, 3), 0), (range(3, 4), 2)):
        metrics = Metrics(BOTH, tmp_path, rank=0, resumed_step=resumed, record={"training": {"steps": 3}})
        for step in steps:
            metrics.log(step, {"loss": 1 / step})
        metrics.close()
    assert [(row["_step"], row["loss"]) for row in history(tmp_path)] == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    runs = [record.run for record in records(tmp_path) if record.HasField("run")]
    assert {run.run_id for run in runs} == {(tmp_path / "wandb" / "run-id.txt").read_text().strip()}
    assert runs[0].project == "mine"
    config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert config["training"] == {"steps": 3}


def test_online_without_a_login_is_refused_with_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(WandbUnavailable, match="WANDB_MODE=offline"):
        Metrics(BOTH, tmp_path, rank=0, resumed_step=0)
