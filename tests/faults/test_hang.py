"""The watchdog: silent while there is progress, a record and stacks when there is none, gone when it goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.distributed.ranks import run_ranks
from titan.config.schema_run import Comm
from titan.faults.collectives import configure_recorder, pending, traces_path
from titan.faults.hang import Watchdog, read_record


def wait_until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    return tmp_path


@pytest.mark.quick
def test_silence_leaves_a_record_that_progress_takes_back(folder: Path) -> None:
    watchdog = Watchdog(folder, 0, traces=None, timeout=0.3)
    watchdog.beat("step 5: data")
    record = wait_until(lambda: read_record(folder, 0))
    assert (record.rank, record.doing, record.waits_in) == (0, "step 5: data", None)
    assert "in wait_until" in record.place, "the training thread's place, in code that is not torch's"
    watchdog.beat("step 6: data")
    watchdog.set_timeout(60)
    assert wait_until(lambda: read_record(folder, 0) is None)
    watchdog.close()
    stacks = (folder / "log/rank-0.stacks.txt").read_text()
    assert stacks.startswith("rank 0, step 5: data, silent for")
    assert "test_silence_leaves_a_record" in stacks


@pytest.mark.quick
def test_progress_leaves_no_record(folder: Path) -> None:
    watchdog = Watchdog(folder, 0, traces=None, timeout=1.0)
    for _ in range(20):
        watchdog.beat("step")
        time.sleep(0.04)
    watchdog.close()
    assert not list((folder / "log").iterdir())


@pytest.mark.quick
def test_the_recorders_settings_are_the_configurations_unless_the_environment_has_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
    names += ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT")
    for name in names:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", "/own/place_")
    comm = Comm(trace_buf_size=77, save_traces_folder="t", save_traces_file_prefix="r")
    configure_recorder(comm, folder)
    assert os.environ["TORCH_FR_BUFFER_SIZE"] == "77"
    assert os.environ["TORCH_FR_DUMP_TEMP_FILE"] == "/own/place_"
    assert traces_path(comm, folder, 3) == folder / "t/r3"
    assert traces_path(Comm(trace_buf_size=0), folder, 3) is None


def _wait_in(kind: str, folder: str) -> str | None:
    """Rank 0 waits for rank 1, which comes late; what rank 0's watchdog saw."""
    if dist.get_rank() == 1:
        dist.group.WORLD.set_timeout(timedelta(seconds=60))
        time.sleep(1.2)
        _enter(kind)
        return None
    watchdog = Watchdog(Path(folder), 0, traces=Path(folder) / "traces/rank_0", timeout=0.5)
    watchdog.beat("step 1")
    _enter(kind)
    record = read_record(folder, 0)
    watchdog.close()
    assert not pending()
    return record.waits_in if record else None


def _enter(kind: str) -> None:
    value = torch.ones(3)
    if kind == "all_reduce":
        dist.all_reduce(value)
    elif dist.get_rank() == 0:
        dist.recv(value, 1)
    else:
        dist.send(value, 0)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("all_reduce", "gloo:all_reduce number 1 of group default_pg, sizes [[3]]"),
        ("recv", "recv (torch/distributed/distributed_c10d.py:"),  # gloo's recorder has no point-to-point
    ],
)
def test_the_collective_that_a_rank_waits_in_is_named(kind: str, said: str, folder: Path) -> None:
    found, _ = run_ranks(_wait_in, 2, kind, str(folder))
    assert found.startswith(said)
    assert (folder / "traces/rank_0").stat().st_size > 0
