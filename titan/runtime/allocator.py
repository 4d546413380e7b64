"""Freed memory stays with the process on CPU, since every step asks for the same again.

glibc hands the top of its heap back to the kernel as it is freed, and the next step pays a page fault for each 4 KiB.
With its thresholds raised, the debug model (6.16 M parameters, 1,024 tokens a step, float32, one core) goes from some
6,000 faults a step to 5: 10 ms of about 650 of processor time. The most that a process holds is what it was; what it
holds between steps grows to that. Blocks of 32 MiB and more are mapped one by one as before: glibc takes no higher
threshold. A user's own MALLOC_* settings, and other C libraries, are left alone.
"""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # M_* of malloc.h
_SETTINGS = {_TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 << 20, _MMAP_THRESHOLD: 32 << 20}


def keep_freed_memory() -> bool:
    """Raises glibc's thresholds for this process; False where there is no glibc or MALLOC_* variables are set."""
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(name, value) == 1 for name, value in _SETTINGS.items())
