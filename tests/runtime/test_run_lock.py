"""One run at a time in a run folder: a second start is refused, by real processes; one of a dead launcher is waited
for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from titan.config import ConfigError
from titan.runtime import run_lock
from titan.runtime.signals import LAUNCHER_PID

HOLD = """
import sys, time
from titan.runtime import run_lock
run_lock.hold(sys.argv[1])
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started = []

    def start(seconds: float = 60.0, launcher: int = 0) -> subprocess.Popen[str]:
        environment = {**os.environ, LAUNCHER_PID: str(launcher)}
        command = [sys.executable, "-c", HOLD, str(tmp_path), str(seconds)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_second_run_in_the_folder_is_refused_at_once_and_told_who_is_there(tmp_path: Path, holder) -> None:
    process = holder()
    began = time.monotonic()
    for take in (run_lock.hold, run_lock.wait_until_free):
        with pytest.raises(ConfigError, match=rf"job.dump_folder = .*another run .*\(process {process.pid} on .*name "):
            take(tmp_path)
    assert time.monotonic() - began < 2
    # Having looked, the refused one has not let go of the lock for the one who holds it.
    with pytest.raises(ConfigError):
        run_lock.wait_until_free(tmp_path)


def test_the_launcher_named_is_the_process_to_stop(tmp_path: Path, holder) -> None:
    holder(launcher=os.getpid())
    with pytest.raises(ConfigError, match=rf"process {os.getpid()} on"):
        run_lock.hold(tmp_path)


def test_a_killed_run_leaves_the_folder_free(tmp_path: Path, holder) -> None:
    process = holder()
    process.kill()
    process.wait()
    run_lock.wait_until_free(tmp_path)
    holder()


def test_workers_of_a_killed_launcher_are_waited_for(tmp_path: Path, holder) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    process = holder(seconds=1.0, launcher=gone.pid)
    run_lock.wait_until_free(tmp_path)
    assert process.wait(5) == 0


def test_a_lock_file_that_cannot_be_opened_is_a_refusal(tmp_path: Path) -> None:
    (tmp_path / run_lock.NAME).mkdir()
    with pytest.raises(ConfigError, match=r"job.dump_folder = .*cannot be written to: Is a directory"):
        run_lock.hold(tmp_path)
