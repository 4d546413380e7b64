"""Starts launchers in the background and ends what a failed test would leave."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_INHERITED = ("NPROC", "NNODES", "RDZV_ENDPOINT", "RDZV_ID", "MAX_RESTARTS", "NUMA_BINDING", "RANK", "WORLD_SIZE")


class Launcher:
    """One running launcher over `tests.launch.worker`."""

    def __init__(self, mode: str, folder: Path, **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        variables = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        variables |= {"OMP_NUM_THREADS": "1", "NPROC": "2", **environment}
        command = [sys.executable, "-m", "tests.launch.start", mode, str(folder)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def end(self, seconds: float = 60) -> tuple[int, str, str]:
        """(exit code, standard output, standard error) when it has ended."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err

    def wait_for(self, name: str, seconds: float = 60) -> None:
        """Waits for a file that a worker makes."""
        until = time.monotonic() + seconds
        while not (self.folder / name).exists():
            if self.process.poll() is not None or time.monotonic() > until:
                raise TimeoutError(f"{name} did not appear; exit code {self.process.poll()}")
            time.sleep(0.02)

    def workers(self) -> list[int]:
        """Process ids of all workers that were started."""
        return [int(file.name.rsplit("-", 1)[1]) for file in self.folder.glob("started-*")]


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def is_gone_within(pid: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while is_running(pid):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    """`launch(mode, name="run", **environment)` starts a launcher; none outlives the test, nor its workers."""
    started: list[Launcher] = []

    def start(mode: str, name: str = "run", **environment: str) -> Launcher:
        started.append(Launcher(mode, tmp_path / name, **environment))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()
        for pid in one.workers():
            if is_running(pid):
                os.kill(pid, 9)
