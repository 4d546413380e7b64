"""Profiler traces by the configuration: one folder a cycle, one JSON a rank, readable by Perfetto and chrome://tracing."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch

from titan.config.schema import Profiling
from titan.runtime.distributed import World

log = logging.getLogger("titan")


class Steps(Protocol):
    """What the loop tells of its progress."""

    def step(self) -> None: ...


class _Off:
    def step(self) -> None:
        return None


@contextlib.contextmanager
def profile(section: Profiling, folder: Path, world: World) -> Iterator[Steps]:
    """Records `profiler_active` steps of every `profile_freq`, after `profiler_warmup` that are thrown away."""
    if not section.enable_profiling:
        yield _Off()
        return
    activities = [torch.profiler.ProfilerActivity.CPU]
    if world.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    target = folder / section.save_traces_folder

    def write(profiler: torch.profiler.profile) -> None:
        cycle = target / f"iteration_{profiler.step_num}"
        cycle.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(cycle / f"rank{world.rank}_trace.json"))
        log.info("profile of step %d in %s", profiler.step_num, cycle)

    waits = section.profile_freq - section.profiler_warmup - section.profiler_active
    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(
            wait=waits, warmup=section.profiler_warmup, active=section.profiler_active
        ),
        on_trace_ready=write,
    ) as profiler:
        yield profiler
