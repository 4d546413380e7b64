"""Rules of what is measured: packages that a sink needs, cycles of the profiler, what only an accelerator has."""

from __future__ import annotations

import importlib.util

from titan.config.problems import Problem
from titan.config.schema_run import Metrics, Profiling


def sinks(section: Metrics) -> list[Problem]:
    """W&B is an extra of this package."""
    if not section.enable_wandb or importlib.util.find_spec("wandb") is not None:
        return []
    text = "the package wandb is not installed: pip install wandb, or use metrics.enable_tensorboard."
    return [Problem("metrics.enable_wandb", text, "true")]


def profiling(section: Profiling) -> list[Problem]:
    """A cycle must be long enough for what it holds."""
    needed = section.profiler_warmup + section.profiler_active
    if not section.enable_profiling or section.profile_freq >= needed:
        return []
    text = (
        f"must be at least profiler_warmup + profiler_active = {section.profiler_warmup} + {section.profiler_active}."
    )
    return [Problem("profiling.profile_freq", f"{text} Write {needed}.", str(section.profile_freq))]


def memory_snapshot_notice(section: Profiling, device_type: str) -> list[str]:
    """The history is that of CUDA's caching allocator; elsewhere there is nothing to record."""
    if not section.enable_memory_snapshot or device_type == "cuda":
        return []
    return [
        "profiling.enable_memory_snapshot = true records CUDA's allocator and does nothing on "
        f"{'the CPU' if device_type == 'cpu' else device_type}; memory_gib in metrics.jsonl is the peak of each step."
    ]
