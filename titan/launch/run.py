"""Runs the workers of this node to their end and returns the exit code of the run.

Between the command and torch's agent: the rendezvous, the environment of the workers, the handlers of signals, and the
words at the end.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch.distributed.elastic.rendezvous.registry as rendezvous
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousHandler,
    RendezvousParameters,
)
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousTimeoutError
from torch.numa.binding import AffinityMode, NumaOptions

from titan.faults.time_budget import STARTED
from titan.launch import early
from titan.launch.agent import Agent
from titan.launch.settings import Settings
from titan.runtime.errors import DONE, FAILED, INTERRUPTED, STOPPED
from titan.runtime.signals import LAUNCHER_PID, STOP_SIGNALS
from titan.runtime.status import clear_status, read_status

_CONNECT_SECONDS = 20
"""Of one attempt to reach the hosting node, in which torch answers no signal."""


def run_workers(settings: Settings, command: Sequence[str], *, processes: int, folder: Path) -> int:
    """Starts `processes` workers and waits for them.

    Args:
        settings: nodes and rendezvous.
        command: of one worker; its rank and peers come with the environment.
        processes: on this node.
        folder: the run folder; logs and status.json are found in it.

    Returns an exit code of `titan.runtime.errors`. After a failure the last lines on standard error are the first
    error, its rank and its log.
    """
    clear_status(folder)
    # torch registers its own handlers for the signals named here when workers start; ours are to stay.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"
    agent: Agent | None = None
    with (
        tempfile.TemporaryDirectory(prefix=".errors-", dir=folder / "log") as error_files,
        # Read anew at each signal: until there is an agent, a signal ends the launcher.
        _handlers(lambda number: agent.handle_signal(number) if agent else early.stop()),
    ):
        try:
            handler = _meet(settings)
            spec = WorkerSpec(
                role="titan",
                local_world_size=processes,
                entrypoint=command[0],
                # The agent substitutes ${local_rank} in arguments; a $ of ours is a $.
                args=tuple(argument.replace("$", "$$") for argument in command[1:]),
                rdzv_handler=handler,
                max_restarts=settings.max_restarts,
                monitor_interval=0.1,
                local_addr=settings.local_address,
                numa_options=_numa(settings),
            )
            agent = Agent(spec, _WorkerFiles(error_files, processes, began=settings.began), folder=folder, tell=_tell)
            try:
                if early.asked():
                    return STOPPED
                result = agent.run()
            finally:
                handler.shutdown()
        except SignalException as error:
            _tell(f"titan: ended by {error.sigval.name}")
            return FAILED
        except RendezvousError as error:
            _tell(_apart(settings, error, agent))
            return FAILED
    return _outcome(agent, failed=result is None or result.is_failed(), folder=folder)


def _outcome(agent: Agent, *, failed: bool, folder: Path) -> int:
    if not failed:
        status = read_status(folder) or {}
        if status.get("status") != "stopped":
            return DONE
        saved = status.get("checkpoints", True)
        then = "goes on from the last checkpoint" if saved else "begins anew, as checkpoint.enable is false"
        _tell(f"titan: stopped as asked; the same command {then}")
        return STOPPED
    failure, asked = agent.failure, agent.stop_signal
    if failure is None:
        _tell("titan: the workers failed and left no reason; see the log folder")
        return FAILED
    if asked is not None and failure.exit_code == -asked:
        _tell(f"titan: {asked.name} came before the first step; nothing was lost")
        return STOPPED
    if failure.exit_code == INTERRUPTED:
        _tell("titan: interrupted")
        return INTERRUPTED
    _tell(failure.report())
    return failure.launcher_exit_code


def _meet(settings: Settings) -> RendezvousHandler:
    """Reaches the node that hosts the rendezvous, or becomes it."""
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=settings.endpoint,
        run_id=settings.run_id,
        min_nodes=settings.nodes,
        max_nodes=settings.nodes,
        local_addr=settings.local_address,
        join_timeout=settings.rendezvous_seconds,
        read_timeout=min(_CONNECT_SECONDS, settings.rendezvous_seconds),
    )
    if settings.nodes > 1:
        seconds = settings.rendezvous_seconds
        _tell(f"titan: waiting for {settings.nodes} nodes at {settings.endpoint}, {seconds} s at most")
    until = time.monotonic() + settings.rendezvous_seconds
    while True:
        try:
            return rendezvous.get_rendezvous_handler(parameters)
        except RendezvousConnectionError:  # the hosting node may start minutes after this one
            if time.monotonic() > until:
                raise


def _apart(settings: Settings, error: RendezvousError, agent: Agent | None) -> str:
    if agent is not None and agent.failure is not None:
        return agent.failure.report()
    where = f"RDZV_ENDPOINT {settings.endpoint}, RDZV_ID {settings.run_id}"
    if isinstance(error, RendezvousClosedError):
        return f"titan: another node has ended the run ({where}); its own launcher says why"
    if isinstance(error, RendezvousTimeoutError):
        return f"titan: not all of {settings.nodes} nodes came within {settings.rendezvous_seconds} s ({where})"
    if isinstance(error, RendezvousConnectionError):
        return f"titan: no connection to the node that hosts the rendezvous, or lost it ({where}): {error}"
    return f"titan: the nodes cannot agree ({where}): {error}"


def _numa(settings: Settings) -> NumaOptions | None:
    if settings.numa_binding is None:
        return None
    return NumaOptions(affinity_mode=AffinityMode(settings.numa_binding))


@contextmanager
def _handlers(act: Callable[[int], None]) -> Iterator[None]:
    """Calls `act` for stop signals; for a hang-up too, unless nohup has it ignored."""
    numbers = [*STOP_SIGNALS]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda given, frame: act(given)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _WorkerFiles(DefaultLogsSpecs):
    """Error files in a temporary folder, output untouched (workers turn it to their logs), and our own variables."""

    def __init__(self, folder: str, processes: int, *, began: float) -> None:
        super().__init__(log_dir=folder)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._variables = {LAUNCHER_PID: str(os.getpid()), STARTED: repr(began)}
        if not os.environ.get("OMP_NUM_THREADS"):
            self._variables["OMP_NUM_THREADS"] = str(max(1, cores // processes))

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        for variables in envs.values():
            variables.update(self._variables)
        return super().reify(envs)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
