"""Garbage collection at chosen steps, so that all ranks pause at once; the automatic one is off while a run trains.

With `training.gc_debug` each collection also says which tensors were held by reference cycles alone: memory that comes
back only when the collector runs.
"""

from __future__ import annotations

import gc
import logging

import torch

log = logging.getLogger("titan")
_MIB = 2**20


def collect(*, debug: bool = False) -> int:
    """Collects, and returns how many tensors only cycles held; 0 without `debug`, which counts and logs them."""
    if not debug:
        gc.collect()
        return 0
    flags = gc.get_debug()
    gc.set_debug(gc.DEBUG_SAVEALL)  # what would be freed is kept in gc.garbage, to be looked at
    try:
        gc.collect()
        held = [item for item in gc.garbage if isinstance(item, torch.Tensor)]
        size = sum(tensor.untyped_storage().nbytes() for tensor in held)
        count = len(held)
        if count:
            shapes = ", ".join(sorted({str(tuple(tensor.shape)) for tensor in held})[:8])
            log.warning("gc_debug: cycles held %d tensors, %.1f MiB, of shapes %s", count, size / _MIB, shapes)
    finally:
        gc.set_debug(flags)
        held = []
        gc.garbage.clear()
    gc.collect()
    return count
