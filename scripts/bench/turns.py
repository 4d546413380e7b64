"""Taking turns between two jobs of several processes: each trains a block of steps, then waits until the driver says
go.

A job's first rank prints `block WALL PROCESSOR` after each block and reads a line; the others wait for it in a barrier.
Knows torch only, since it is also imported in the environment of the other trainer.
"""

from __future__ import annotations

import sys
import time

import torch.distributed as dist


class Turns:
    """Call `after_step` at the end of each step on every rank; a collective call each `block` steps."""

    def __init__(self, block: int) -> None:
        self._block, self._steps = block, 0
        self._since = time.perf_counter(), time.process_time()

    def after_step(self) -> None:
        """Ends the turn where a block is full: waits for all ranks, reports, and waits for the next turn."""
        self._steps += 1
        if self._steps % self._block:
            return
        dist.barrier()
        wall, processor = time.perf_counter() - self._since[0], time.process_time() - self._since[1]
        if dist.get_rank() == 0:
            print(f"block {wall} {processor}", flush=True)
            sys.stdin.readline()
        dist.barrier()
        self._since = time.perf_counter(), time.process_time()
