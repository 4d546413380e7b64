"""A worker for the launcher's tests: the real runtime around a loop of one all-reduce a step.

`python -m tests.launch.worker MODE FOLDER`. What it does is the mode's; it leaves `started-RANK-PID` in the folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from titan.config import ConfigError, Problem
from titan.config.schema_run import Comm
from titan.runtime import StopRequest, main_with_errors, setup, shutdown, write_status
from titan.runtime import log as logs
from titan.runtime.signals import watch_launcher


class NotFinite(RuntimeError):
    exit_code = 3


def run(mode: str, folder: Path, stop: StopRequest) -> int:
    rank = int(os.environ["RANK"])
    (folder / f"started-{rank}-{os.getpid()}").touch()
    logs.own_streams(folder, rank)
    logs.start(folder, rank)
    if mode == "refused":
        raise ConfigError([Problem("training.seq_len", "cannot be.", "7")])
    if mode == "not-finite":
        raise NotFinite("loss is nan at step 3")
    if mode == "flaky" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("only once")
    if mode == "leave-child":
        child = subprocess.Popen(["sleep", "600"])
        (folder / f"child-{child.pid}").touch()
        raise ValueError("left a child")
    if mode == "flaky":
        return 0
    return _steps(mode, folder, stop)


def _steps(mode: str, folder: Path, stop: StopRequest) -> int:
    import torch
    import torch.distributed as dist

    world = setup(Comm(init_timeout_seconds=60))
    failing = world.world_size - 1
    print(f"out of rank {world.rank}")
    for step in range(1, 10_000):
        asked = torch.tensor([float(stop.requested), 1.0])
        if world.world_size > 1:
            dist.all_reduce(asked)
        if float(asked[1]) != world.world_size:
            raise AssertionError(f"{asked[1]} ranks")
        if float(asked[0]) > 0:
            if stop.requested:  # the others have learned of it by the all-reduce and know no reason
                saves = mode != "steps-unsaved"
                write_status(folder, "stopped", step=step, reason=stop.reason, checkpoints=saves)
            break
        if mode == "done" and step == 3:
            break
        if mode == "raise" and step == 3 and world.rank == failing:
            raise ValueError("boom")
        if mode == "killed" and step == 3 and world.rank == failing:
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "hang" and step == 3:
            if world.rank == failing:
                raise ValueError("boom")
            time.sleep(600)
        if mode == "hang-both" and step == 3:
            _hang(folder, world.rank, stop)
        (folder / f"stepping-{world.rank}").touch()
        time.sleep(0.02)
    shutdown(world)
    return 0


def _hang(folder: Path, rank: int, stop: StopRequest) -> None:
    (folder / f"hanging-{rank}").touch()
    while True:
        time.sleep(0.02)
        if stop.requested:
            (folder / f"noted-{rank}").touch()


def main() -> int:
    mode, folder = sys.argv[1:3]  # the launcher appends CONFIG and overrides
    stop = StopRequest.install()
    watch_launcher(stop, interval=0.1, grace=5.0)
    return main_with_errors(lambda: run(mode, Path(folder), stop))


if __name__ == "__main__":
    sys.exit(main())
