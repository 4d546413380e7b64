"""Profiler traces by the configuration: one folder a cycle, one JSON a rank, readable by Perfetto and chrome://tracing.

A cycle is `profile_freq` steps: it waits, then warms the profiler up, then records the last `profiler_active` steps.
Snapshots of the allocator (`memory_snapshot.py`) go along. Off, the loop pays two empty calls a step.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from titan.config.schema import Profiling
from titan.runtime.distributed import World
from titan.runtime.memory_snapshot import memory_snapshots

log = logging.getLogger("titan")


class Steps(Protocol):
    """What the loop tells of its progress."""

    def step(self) -> None: ...


@dataclass(frozen=True)
class _Both:
    trace: Callable[[], None]
    snapshot: Callable[[], None]

    def step(self) -> None:
        self.trace()
        self.snapshot()


@contextlib.contextmanager
def profile(section: Profiling, folder: Path, world: World, *, resumed_step: int = 0) -> Iterator[Steps]:
    """Traces and memory snapshots, as far as they are asked for; yields what to call `step()` on after each training
    step. The arguments are those of `traces` and `memory_snapshots`.
    """
    with (
        traces(section, folder, world, resumed_step=resumed_step) as trace,
        memory_snapshots(section, folder, world, resumed_step=resumed_step) as snapshot,
    ):
        yield _Both(trace, snapshot)


@contextlib.contextmanager
def traces(section: Profiling, folder: Path, world: World, *, resumed_step: int = 0) -> Iterator[Callable[[], None]]:
    """Records `profiler_active` steps of every `profile_freq`, after `profiler_warmup` that are thrown away.

    Args:
        folder: the run folder; traces are `<save_traces_folder>/iteration_<last recorded step>/rank<rank>_trace.json`.
        resumed_step: steps of the run that are done, so that a resumed run names its traces by its own steps.

    Yields:
        What to call after each training step.
    """
    if not section.enable_profiling:
        yield lambda: None
        return
    target = folder / section.save_traces_folder

    def write(profiler: torch.profiler.profile) -> None:
        step = resumed_step + profiler.step_num
        cycle = target / f"iteration_{step}"
        cycle.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(cycle / f"rank{world.rank}_trace.json"))
        log.info("profile of step %d in %s", step, cycle)

    waits = section.profile_freq - section.profiler_warmup - section.profiler_active
    activities = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]  # the CPU, any accelerator
    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=waits, warmup=section.profiler_warmup, active=section.profiler_active),
        on_trace_ready=write,
    ) as profiler:
        yield profiler.step
