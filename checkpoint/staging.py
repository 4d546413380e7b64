"""The copy in host memory that a background save writes while training overwrites the original.

With `async_with_pinned_mem` the buffers are kept from save to save: new memory costs more than the copy itself (on CPU
its first touch, on accelerators pinning), and one save is in flight at a time. On an accelerator they are pinned, and
the copies are only put on the stream: the next optimizer step is ordered after them, and the writer waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from titan.checkpoint.pieces import Piece


class Staging:
    """Copies pieces to host memory.

    Args:
        keep: keep the buffers; those of pieces on an accelerator are pinned, and their copies not waited for.
    """

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._buffers: dict[tuple[str, torch.Size], Tensor] = {}

    def copy(self, pieces: Sequence[Piece]) -> tuple[list[Piece], Callable[[], None]]:
        """The copied pieces, and what to call before reading them: it waits until the copies are done."""
        staged = [replace(one, tensor=self._host(one)) for one in pieces]
        devices = {one.tensor.device for one in pieces if one.tensor.device.type != "cpu"}
        if not self._keep or not devices:
            return staged, lambda: None
        events = []
        for device in devices:
            event = torch.Event(device=device)
            event.record()
            events.append(event)

        def ready() -> None:
            for event in events:
                event.synchronize()

        return staged, ready

    def _host(self, one: Piece) -> Tensor:
        if not self._keep:
            return one.tensor.to("cpu", copy=True)
        key = (one.key, one.offset)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != one.tensor.shape or buffer.dtype != one.tensor.dtype:
            pinned = one.tensor.device.type != "cpu"
            buffer = self._buffers[key] = torch.empty(one.tensor.shape, dtype=one.tensor.dtype, pin_memory=pinned)
        buffer.copy_(one.tensor, non_blocking=True)
        return buffer
