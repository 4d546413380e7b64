"""torch's elastic agent for one node, with signals handed on to the workers and failures told in order.

As it comes, the agent answers SIGTERM by ending itself with a traceback and exit code 1 while its workers save,
dies of SIGUSR1, restarts what will fail again, and after a failure waits 30 s for peers that hang in a collective.
The changes: stop signals go to the workers and the agent waits for them; a failure that a restart would repeat is
final; peers of a failed worker get `PEER_SECONDS` to fail by themselves, then are ended; nodes tell each other the
first error through the rendezvous store.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs, SubprocessContext

from titan.launch import hang
from titan.launch.failures import Failure, first
from titan.runtime.errors import FAILED, STOPPED
from titan.runtime.log import path as log_path

PEER_SECONDS = 5.0
NODES_SECONDS = 5.0
_POLL_SECONDS = 0.05

log = logging.getLogger("titan.launch")


class Agent(LocalElasticAgent):
    """Starts, watches and ends the workers of this node.

    Attributes:
        failure: the first error of the last attempt, None while there is none.
        stop_signal: the stop signal that was handed on to the workers, if any.
    """

    def __init__(self, spec: WorkerSpec, logs_specs: LogsSpecs, *, folder: Path, tell: Callable[[str], None]) -> None:
        super().__init__(spec, logs_specs, shutdown_timeout=int(PEER_SECONDS))
        self.failure: Failure | None = None
        self.stop_signal: signal.Signals | None = None
        self._folder = folder
        self._tell = tell
        self._starting = False
        self._pending: list[int] = []
        self._ended: dict[int, float] = {}
        self._killed: set[int] = set()

    def handle_signal(self, number: int) -> None:
        """The handler of stop signals: to the workers if they run, else the end of the launcher."""
        if self._starting:
            self._pending.append(number)  # half of the workers exist: no exception and no signal now
        elif self._processes():
            self._hand_on(number)
        else:
            raise SystemExit(STOPPED)

    def _hand_on(self, number: int) -> None:
        # A hang-up means to us what SIGTERM does; workers have no terminal.
        given = signal.SIGTERM if number == signal.SIGHUP else signal.Signals(number)
        if self.stop_signal is None:
            self._tell(f"{given.name}: the workers finish their step, save and stop")
        self.stop_signal = given
        self._remaining_restarts = 0
        for process in self._processes().values():
            process.send_signal(given)  # to the worker alone, not to processes that it started

    def _processes(self) -> dict[int, Any]:
        """The running workers' Popen objects by local rank."""
        context = self._pcontext
        if not isinstance(context, SubprocessContext):
            return {}
        return {rank: one.proc for rank, one in context.subprocess_handlers.items() if one.proc.poll() is None}

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        # torch 2.13 keeps the workers' store over a restart, and with it the addresses of processes that are gone: gloo
        # connects to them and is refused. Without these two a round of the rendezvous makes a new store.
        handler: Any = worker_group.spec.rdzv_handler
        if hasattr(handler, "_bootstrap_store_info"):
            handler._bootstrap_store_info = handler._shared_tcp_store_server = None
        super()._rendezvous(worker_group)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._ended, self._killed = {}, set()
        hang.clear(self._folder, [worker.global_rank for worker in worker_group.workers])
        self._starting = True
        try:
            started: dict[int, Any] = super()._start_workers(worker_group)
        finally:
            self._starting = False
        for number in self._pending:
            self._hand_on(number)
        self._pending.clear()
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self._look_for_failures():
            self._wait_for_peers()
        result: RunResult = super()._monitor_workers(worker_group)
        if result.is_failed() and result.failures:
            self._settle(worker_group, result)
        return result

    def _look_for_failures(self) -> bool:
        """Notes when workers end; whether one failed."""
        context = self._pcontext
        if not isinstance(context, SubprocessContext):
            return False
        codes = {rank: one.proc.poll() for rank, one in context.subprocess_handlers.items()}
        now = time.time()
        for rank, code in codes.items():
            if code is not None:
                self._ended.setdefault(rank, now)
        return any(code for code in codes.values())

    def _wait_for_peers(self) -> None:
        """Lets the peers of a failed worker find out for themselves, which gives each its own message, then ends them:
        one that hangs in a collective, or only notes a SIGTERM for its next step, would never leave."""
        until = time.monotonic() + PEER_SECONDS
        while self._processes() and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
            self._look_for_failures()
        for rank, process in self._processes().items():
            self._killed.add(rank)
            process.kill()
            process.wait()
        self._look_for_failures()

    def _settle(self, group: WorkerGroup, result: RunResult) -> None:
        failures = []
        for rank, found in result.failures.items():
            where, local = log_path(self._folder, rank), found.local_rank
            ended = self._ended.get(local, time.time())
            failures.append(Failure.of(rank, found, ended=ended, by_us=local in self._killed, log=where))
        self.failure = first(failures)
        if self.failure.secondary or self.failure.exit_code == -signal.SIGABRT:  # NCCL's watchdog aborts
            self.failure = self._hang(group, self.failure)
        if group.group_world_size is not None and group.group_world_size > 1:
            self.failure = self._first_of_nodes(group, self.failure)
        if self.failure.is_final:
            self._remaining_restarts = 0
        elif self._remaining_restarts:
            done = group.spec.max_restarts - self._remaining_restarts + 1
            self._tell(f"{self.failure.report()}\ntitan: restart {done} of {group.spec.max_restarts}")

    def _hang(self, group: WorkerGroup, failure: Failure) -> Failure:
        """`failure`, or that of the rank which the others waited for in vain."""
        found = hang.find(self._folder, [worker.global_rank for worker in group.workers])
        if found is None:
            return failure
        trace = "\n".join(["titan: no progress until the timeout:", *(f"  {line}" for line in found.lines)])
        if found.absent is None:
            return replace(failure, trace=trace)
        log = str(log_path(self._folder, found.absent))
        return Failure(found.absent, FAILED, hang.message(found), trace, failure.time, False, log)

    def _first_of_nodes(self, group: WorkerGroup, own: Failure) -> Failure:
        """The first error of the whole run. Waits a little for nodes that have not failed yet, one of which may
        have it, and for all to have read it: the store lives in one of the launchers and ends with it."""
        store: Any = group.store
        nodes, attempt = group.group_world_size or 1, group.spec.max_restarts - self._remaining_restarts
        until, answer = time.monotonic() + NODES_SECONDS, own

        def wait_for_all(counter: str) -> None:
            store.add(counter, 1)
            while store.add(counter, 0) < nodes and time.monotonic() < until:
                time.sleep(_POLL_SECONDS)

        try:
            if not own.secondary:
                store.compare_set(f"titan/first/{attempt}", "", own.to_json())
            wait_for_all(f"titan/failed/{attempt}")
            if own.secondary and store.check([f"titan/first/{attempt}"]):
                answer = Failure.from_json(store.get(f"titan/first/{attempt}").decode())
            wait_for_all(f"titan/told/{attempt}")
        except RuntimeError as error:  # the launcher with the store is gone; what this node knows has to do
            log.warning("the other nodes cannot be asked for their errors any more: %s", error)
        return answer

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        super()._shutdown(death_sig, timeout)
        context = self._pcontext
        if not isinstance(context, SubprocessContext):
            return
        for handler in context.subprocess_handlers.values():
            # Each worker leads a session; what it started and left behind is still in its group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(handler.proc.pid, signal.SIGKILL)
