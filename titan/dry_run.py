"""A dry run: rank 0 of a world that need not exist, in one process, over collectives that do nothing.

`comm.mode = "fake_backend"` builds the model of that rank as a run would, with its memory, compilers and schedules, and
takes a few steps, so that what would fail on its own fails here. What a collective would bring is whatever was in the
memory: losses mean nothing, are not shown, and nothing is saved. Peak memory is that of the rank; time is that of its
own work. No pipeline: its stages exchange shapes before the first microbatch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from titan.config import Config, Resolved, resolve
from titan.data import open_rows
from titan.data.loader import StepLoader
from titan.metrics import describe
from titan.parallelisms import mesh as meshes
from titan.parallelisms.shards import local_tensor
from titan.runtime import PeakMemory, World, device_name
from titan.runtime.device import local_device
from titan.runtime.errors import DONE
from titan.training_step import Progress, TrainingStep

log = logging.getLogger("titan")
STEPS = 3
"""The first compiles and allocates; the others are like all that would follow."""


class DryRun(TrainingStep):
    """The step of rank 0; its process group must exist."""

    def __init__(self, resolved: Resolved, world: World) -> None:
        config = self.config = resolved.config
        self.resolved, self.world, self.batch = resolved, world, resolved.batch
        seed = config.debug.seed or 0
        self.rows = open_rows(config.training, config.model, seed)
        self.mesh = meshes.build(resolved.degrees, world.device.type) if world.world_size > 1 else None
        self.build_model(seed)
        self.build_optimizer(config.training.steps)
        self.progress = Progress()
        self.losses = []

    def take_steps(self, count: int) -> list[float]:
        """Seconds of each step of this rank."""
        seconds = []
        loader = StepLoader(
            self.rows,
            global_rows=self.batch.global_rows,
            accumulation=self.batch.accumulation,
            batch_ranks=self.resolved.degrees.batch,
            batch_rank=0,
            position=0,
        )
        with loader:
            for _ in range(count):
                begun = time.perf_counter()
                data = next(loader)
                valid_tokens, _ending = self.open_step(data)
                share = self.forward_backward(data, valid_tokens)
                norm = self.norm(share)
                self.update(norm)
                norm.item()  # waits for the device
                seconds.append(time.perf_counter() - begun)
        return seconds


def dry_run(config: Config, world_size: int) -> int:
    """Builds rank 0 of `world_size` processes and takes a few steps; returns the exit code.

    Raises ConfigError where the configuration cannot run at that size, and whatever a run would raise.
    """
    device = local_device(0)
    resolved = resolve(config, world_size, device.type)
    for warning in resolved.warnings:
        log.warning("%s", warning)
    with _fake_group(world_size):
        run = DryRun(resolved, World(0, 0, world_size, device))
        name = f"{device_name(device)} ({device.type})"
        rows = run.rows.rows_per_epoch
        for line in describe(resolved, rows_per_epoch=rows, world_size=world_size, device=name):
            log.info("%s", line)
        memory = PeakMemory(device)
        seconds = run.take_steps(min(STEPS, config.training.steps))
        own = sum(local_tensor(named.parameter).numel() for named in run.model.parameters)
        times = ", ".join(f"{one:.2f}" for one in seconds)
        log.info("dry run: rank 0 of %d holds %s parameters", world_size, f"{own:,}")
        log.info("dry run: steps of %s s without communication, peak memory %.2f GiB", times, memory.gib())
    log.info("dry run: nothing was saved; leave out comm.mode to train")
    return DONE


@contextmanager
def _fake_group(world_size: int) -> Iterator[None]:
    if world_size == 1:
        yield
        return
    # Registers the backend `fake`; torch has no public name for it (2.13).
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()
