"""From the command line to `run_workers`: everything that can be refused or prepared before a process exists.

The order is that of cost: the environment and the file in a fraction of a second, then torch for the devices, the rules
across fields, the run folder, the data.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from titan import config as configuration
from titan.commands.arguments import config_first
from titan.launch.early import unless_stopped
from titan.launch.settings import Settings
from titan.runtime import log, run_lock
from titan.runtime.device import device_count, device_type
from titan.runtime.errors import DONE, REFUSED, main_with_errors

_USAGE = """usage: python -m titan.launch CONFIG [--section.key=value ...]   (./train.sh does the same)

Starts the processes of a run on this machine. Environment:
  NPROC           processes here; default: as the degrees ask, on accelerators at most one each
  NNODES          launchers that make up the run; RDZV_ENDPOINT=host:port says where they meet
  RDZV_ID, RDZV_TIMEOUT, LOCAL_ADDR   name of the run, seconds to wait for nodes, address of this one
  MAX_RESTARTS    restarts after a failure (0)
  NUMA_BINDING    node, socket, exclusive or core-complex
  OMP_NUM_THREADS default: CPU cores / NPROC
  TITAN_DEVICE    cpu: leave accelerators alone
Exit codes: 0 done, 1 failed, 2 refused, 3 loss not finite, 75 stopped in order (start it again), 130 interrupted.
"""


def main(argv: Sequence[str], *, worker: Sequence[str] = ("-m", "titan", "train")) -> int:
    """Launches a run and returns its exit code.

    Args:
        argv: CONFIG and overrides.
        worker: arguments of Python that start one worker, before those of `argv`; the tests' own workers.
    """
    argv = config_first(argv)
    if argv and argv[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return DONE
    if not argv or argv[0].startswith("-"):
        print(_USAGE, end="", file=sys.stderr)
        return REFUSED
    return main_with_errors(lambda: unless_stopped(lambda: _launch(argv[0], argv[1:], worker)))


def _launch(path: str, overrides: Sequence[str], worker: Sequence[str]) -> int:
    settings = Settings.from_environment()
    config = configuration.load(path, overrides)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported: now
    kind = device_type()
    settings.check_device(kind)
    dry = config.comm.mode == "fake_backend"
    processes = _processes(settings, config, "cpu" if dry else kind)
    resolved = configuration.resolve(config, processes * settings.nodes, kind)
    folder = Path(config.job.dump_folder)
    log.start_launcher(folder, color=not config.metrics.disable_color_printing)
    if settings.nodes == 1 and not dry:  # of several, others may have begun: then rank 0 finds out
        run_lock.wait_until_free(folder)
    from titan.data import prepare

    prepare(resolved.config.training, resolved.config.model)
    if dry:
        from titan.dry_run import dry_run

        return dry_run(config, processes * settings.nodes)
    from titan.launch.run import run_workers

    command = [sys.executable, *worker, path, *overrides]
    return run_workers(settings, command, processes=processes, folder=folder)


def _processes(settings: Settings, config: configuration.Config, kind: str) -> int:
    if settings.processes is not None:
        return settings.processes
    here = device_count(kind)
    wanted = configuration.world_size_wanted(config, kind, here * settings.nodes)
    share = -(-wanted // settings.nodes)  # an uneven one is refused by `resolve`, with the numbers
    return share if kind == "cpu" else min(share, here)
