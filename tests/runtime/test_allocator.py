"""Freed memory is used again without page faults; the user's own settings win."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

_GLIBC = platform.libc_ver()[0] == "glibc"
_COUNT = """
import resource
from titan.runtime.allocator import keep_freed_memory
kept = keep_freed_memory()
for _ in range(3):
    b"x" * (16 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    b"x" * (16 << 20)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**environment: str) -> tuple[str, int]:
    """Whether the thresholds were raised, and page faults of 48 MiB asked for again."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    out = subprocess.run(
        [sys.executable, "-c", _COUNT], env=clean | environment, check=True, capture_output=True, text=True
    ).stdout.split()
    return out[0], int(out[1])


@pytest.mark.quick
def test_memory_of_a_step_is_not_faulted_in_again() -> None:
    kept, again = faults()
    assert kept == str(_GLIBC)
    assert again < 100 or not _GLIBC


@pytest.mark.quick
def test_settings_of_the_user_are_left_alone() -> None:
    kept, again = faults(MALLOC_MMAP_THRESHOLD_="1048576")
    assert kept == "False"
    assert again > 1000 or not _GLIBC  # 48 MiB in pages of 4 KiB, or larger ones
