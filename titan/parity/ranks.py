"""Runs a function on N real processes in one process group and hands back what each rank returned.

The processes are forked from a server that has torch loaded, and wait for the next case of the same size: a case
costs a new process group, not a new interpreter. A case that may end its processes asks for `fresh` ones. The first
error, by time and not by rank, is what the caller sees, with the rank that raised it; its peers are ended then, since
they wait in a collective that will never complete. An error about a lost peer waits a moment for the one behind it.
"""

from __future__ import annotations

import atexit
import multiprocessing as mp
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any, cast

_PRELOAD = [
    "torch",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.distributed.checkpoint",
    "titan.trainer",
]
_PATIENCE = 2.0
"""Seconds in which the error behind a lost connection usually arrives."""
_context = mp.get_context("forkserver")
_context.set_forkserver_preload(_PRELOAD)


class RankError(RuntimeError):
    """The first rank that failed and its traceback."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(f"rank {rank} failed first:\n{text}")
        self.rank = rank
        self.text = text


def _main(rank: int, world_size: int, connection: Connection, environment: dict[str, str], threads: int) -> None:
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    import torch

    from titan.runtime.errors import is_about_a_peer

    torch.set_num_threads(threads)
    while True:
        try:
            store, timeout, job = connection.recv()
        except EOFError:
            return
        try:
            answer = ("ok", _run(rank, world_size, store, timeout, job), False)
        except BaseException as error:
            answer = ("error", traceback.format_exc(), is_about_a_peer(error))
        try:
            connection.send(answer)
        except BrokenPipeError:  # the caller has another rank's error and has left
            return
        if answer[0] == "error":
            return


def _run(rank: int, world_size: int, store: str, timeout: float, job: bytes) -> Any:
    import torch.distributed as dist

    from titan.runtime.device import local_device

    function, args, kwargs = pickle.loads(job)
    if world_size == 1:
        return function(*args, **kwargs)
    device = local_device(rank)
    accelerated = device.type != "cpu"
    dist.init_process_group(
        f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}" if accelerated else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout),
        device_id=device if accelerated else None,
    )
    result = function(*args, **kwargs)
    dist.barrier()
    dist.destroy_process_group()
    return result


class _Ranks:
    """N processes that wait for work."""

    def __init__(self, world_size: int, environment: dict[str, str], threads: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._cases = 0
        self._connections: dict[Any, int] = {}
        self._processes = []
        for rank in range(world_size):
            parent, child = _context.Pipe()
            process = _context.Process(target=_main, args=(rank, world_size, child, environment, threads), daemon=True)
            process.start()
            child.close()
            self._connections[parent] = rank
            self._processes.append(process)

    def run(self, job: bytes, timeout: float, collective_timeout: float) -> list[Any]:
        self._cases += 1
        store = os.path.join(self._folder.name, f"store-{self._cases}")
        for connection in self._connections:
            connection.send((store, collective_timeout, job))
        pending, results = dict(self._connections), {}
        deadline = time.monotonic() + timeout
        first: RankError | None = None  # held back a moment: peers end by themselves, or say what lost a connection
        died = False
        while pending:
            ready = wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise first or TimeoutError(f"ranks {sorted(pending.values())} did not answer within {timeout} s")
            for connection in ready:
                rank = pending.pop(connection)
                try:
                    status, value, about_a_peer = cast(Connection, connection).recv()
                except (EOFError, ConnectionResetError):
                    status, value, about_a_peer = "died", "the process ended without an answer (killed?)", False
                if status == "ok":
                    results[rank] = value
                    continue
                if status == "error" and not about_a_peer and not died:
                    raise RankError(rank, value)
                if first is None or (status == "died" and not died):
                    first = RankError(rank, value)
                died = died or status == "died"
                deadline = min(deadline, time.monotonic() + _PATIENCE)
        if first is not None:
            raise first
        return [results[rank] for rank in sorted(results)]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()


_waiting: dict[tuple[str, int], _Ranks] = {}


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout: float = 120.0,
    collective_timeout: float = 60.0,
    fresh: bool = False,
    environment: dict[str, str] | None = None,
    threads: int = 1,
    **kwargs: Any,
) -> list[Any]:
    """Calls `function(*args, **kwargs)` on each rank, a module-level function with picklable arguments.

    Args:
        timeout: seconds for the whole case.
        collective_timeout: seconds for one collective.
        fresh: processes of their own, ended afterwards; so are those with an `environment` or other `threads`.
        threads: of torch, a process.

    Returns one result a rank. Raises RankError with the first failure, TimeoutError with the ranks that had not
    answered.
    """
    job = pickle.dumps((function, args, kwargs))
    alone = fresh or environment is not None or threads != 1
    key = (function.__module__, world_size)
    if not alone:
        # DTensor caches by mesh, and meshes of two modules can be equal where their process groups are not.
        for other in [waiting for waiting in _waiting if waiting[0] != key[0]]:
            _waiting.pop(other).close()
    made = None if alone else _waiting.pop(key, None)
    ranks = made or _Ranks(world_size, environment or {}, threads)
    try:
        results = ranks.run(job, timeout, collective_timeout)
    except BaseException:
        ranks.close()
        raise
    if alone:
        ranks.close()
    else:
        _waiting[key] = ranks
    return results


@atexit.register
def _close_all() -> None:
    for ranks in _waiting.values():
        ranks.close()
