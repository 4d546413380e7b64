"""The peak of live bytes of a real run on the CPU, from the profiler's record of every allocation: what `titan plan`
predicts is compared with it.

The record comes from torch's CPU allocator, below the dispatcher, and so knows nothing of the prediction's method. It
sees what operators use within themselves too. The process-group backend's own copies are left out: allocations made
under a collective or point-to-point operator (`c10d::*`), which another backend does not make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

_BACKENDS = ("c10d::", "gloo:")


@dataclass(frozen=True)
class Measured:
    """Peaks of a run, in bytes.

    Attributes:
        steps: the peak during each step.
        after: what is alive after the last one.
    """

    steps: tuple[int, ...]
    after: int


def measure(build: Callable[[], Any], step: Callable[[Any], None], steps: int = 2) -> Measured:
    """Calls `build`, and `step` on what it returns, `steps` times; tensors that existed before are not counted."""
    marks = [f"measured step {number}" for number in range(steps)]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        built = build()
        for mark in marks:
            with torch.profiler.record_function(mark):
                step(built)
    begins = {}
    allocations = []
    for event, outside in _walk(profiler.profiler.kineto_results.experimental_event_tree()):
        if event.name in marks:
            begins[event.name] = event.start_time_ns, event.end_time_ns
        if event.tag == torch._C._profiler._EventType.Allocation:
            fields = event.extra_fields
            allocations.append((event.start_time_ns, fields.ptr, fields.alloc_size, outside))
    return _replay(sorted(allocations, key=lambda one: one[0]), [begins[mark] for mark in marks])


def _walk(roots: list[Any]) -> Iterator[tuple[Any, bool]]:
    """Every event, and whether it lies under an operator of a process-group backend."""
    stack = [(root, False) for root in roots]
    while stack:
        event, inside = stack.pop()
        inside = inside or event.name.startswith(_BACKENDS)
        yield event, inside
        stack += [(child, inside) for child in event.children]


def _replay(allocations: list[tuple[int, int, int, bool]], spans: list[tuple[int, int]]) -> Measured:
    sizes: dict[int, int] = {}
    live = 0
    peaks = [0] * len(spans)
    for time, pointer, size, foreign in allocations:
        if size > 0:
            live -= sizes.pop(pointer, 0)  # freed on a thread of the backend, which the record does not see
        if size > 0 and not foreign:
            sizes[pointer] = size
            live += size
        elif size < 0:
            live -= sizes.pop(pointer, 0)
        for number, (start, stop) in enumerate(spans):
            if start <= time <= stop:
                peaks[number] = max(peaks[number], live)
    return Measured(tuple(peaks), live)
