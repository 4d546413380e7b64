"""Runs a function on N real processes in one gloo group and hands back what each rank returned.

The processes are forked from a server that has torch loaded, so that a case of four ranks takes about two seconds instead of ten,
and each case has processes of its own, which it may kill. The first error, by time and not by rank, is what the test sees, with the
rank that raised it; the peers are ended then, since they wait in a collective that will never complete.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

_PRELOAD = [
    "torch",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.distributed.checkpoint",
    "titan.parallelisms.parallelize",
]
_context = mp.get_context("forkserver")
_context.set_forkserver_preload(_PRELOAD)


class RankError(RuntimeError):
    """The first rank that failed and its traceback."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(f"rank {rank} failed first:\n{text}")
        self.rank = rank
        self.text = text


def _main(rank: int, world_size: int, store: str, connection: Connection, environment: dict[str, str], job: bytes) -> None:
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    import torch
    import torch.distributed as dist

    try:
        torch.set_num_threads(1)
        if world_size > 1:
            dist.init_process_group(
                "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timedelta(seconds=60)
            )
        function, args, kwargs = pickle.loads(job)
        connection.send(("ok", function(*args, **kwargs)))
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
    except BaseException:
        connection.send(("error", traceback.format_exc()))
    finally:
        connection.close()


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout: float = 120.0,
    environment: dict[str, str] | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Calls `function(*args, **kwargs)` on each rank, a module-level function with picklable arguments.

    Returns one result a rank. Raises RankError with the first failure, TimeoutError with the ranks that had not answered.
    """
    job = pickle.dumps((function, args, kwargs))
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        connections: dict[Any, int] = {}
        processes = []
        for rank in range(world_size):
            parent, child = _context.Pipe(duplex=False)
            process = _context.Process(
                target=_main, args=(rank, world_size, store, child, dict(environment or {}), job), daemon=True
            )
            process.start()
            child.close()
            connections[parent] = rank
            processes.append(process)
        try:
            results = _collect(connections, time.monotonic() + timeout)
            for process in processes:
                process.join(20)
            return [results[rank] for rank in range(world_size)]
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()


def _collect(connections: dict[Any, int], deadline: float) -> dict[int, Any]:
    pending = dict(connections)
    results: dict[int, Any] = {}
    while pending:
        ready = wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"ranks {sorted(pending.values())} did not answer in time")
        for connection in ready:
            rank = pending.pop(connection)
            try:
                status, value = connection.recv()  # type: ignore[attr-defined]
            except EOFError:
                raise RankError(rank, "the process ended without an answer (killed?)") from None
            if status == "error":
                raise RankError(rank, value)
            results[rank] = value
    return results
