"""Snapshots of CUDA's allocator: who allocated what, and when, for https://docs.pytorch.org/memory_viz.

One pickle a rank each `profile_freq` steps, and one where memory runs out: that is when it is wanted. Recording costs
some percent of a step (torch.cuda.memory._record_memory_history, the only way there is; private in torch 2.13).
"""

from __future__ import annotations

import contextlib
import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from titan.config.schema import Profiling
from titan.runtime.distributed import World

log = logging.getLogger("titan")
_ENTRIES = 100_000
"""Allocations and frees that are remembered; torchtitan's number."""


@contextlib.contextmanager
def memory_snapshots(
    section: Profiling, folder: Path, world: World, *, resumed_step: int = 0
) -> Iterator[Callable[[], None]]:
    """Records while the block runs; yields what to call after each training step.

    Args:
        section: `enable_memory_snapshot`, `profile_freq`, `save_memory_snapshot_folder`.
        folder: the run folder; snapshots are `<save_memory_snapshot_folder>/iteration_<step>/rank<rank>_memory_snapshot
            .pickle`, and `iteration_<step>_exit/` where memory ran out in the step after that.
        resumed_step: steps of the run that are done.
    """
    if not section.enable_memory_snapshot or world.device.type != "cuda":
        yield lambda: None
        return
    target, done = folder / section.save_memory_snapshot_folder, resumed_step

    def write(name: str) -> None:
        where = target / name
        where.mkdir(parents=True, exist_ok=True)
        with open(where / f"rank{world.rank}_memory_snapshot.pickle", "wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)
        log.info("memory snapshot in %s", where)

    def step() -> None:
        nonlocal done
        done += 1
        if done % section.profile_freq == 0:
            write(f"iteration_{done}")

    torch.cuda.memory._record_memory_history(max_entries=_ENTRIES)
    try:
        yield step
    except torch.OutOfMemoryError:
        write(f"iteration_{done}_exit")
        raise
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
