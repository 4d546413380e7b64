"""The copy in host memory that a background save writes while training overwrites the original.

Through pinned memory, on an accelerator, the copies are only put on the stream: the next optimizer step is ordered
after them, and the writer waits for them. The pinned buffers are kept from save to save, as pinning costs more than
copying; one save is in flight at a time.
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
        pinned: keep pinned buffers and copy without waiting; for pieces on an accelerator, no difference on CPU.
    """

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._buffers: dict[tuple[str, torch.Size], Tensor] = {}

    def copy(self, pieces: Sequence[Piece]) -> tuple[list[Piece], Callable[[], None]]:
        """The copied pieces, and what to call before reading them: it waits until the copies are done."""
        staged = [replace(one, tensor=self._host(one)) for one in pieces]
        devices = {one.tensor.device for one in pieces if one.tensor.device.type != "cpu"}
        if not self._pinned or not devices:
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
        if not self._pinned or one.tensor.device.type == "cpu":
            return one.tensor.to("cpu", copy=True)
        key = (one.key, one.offset)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != one.tensor.shape or buffer.dtype != one.tensor.dtype:
            buffer = self._buffers[key] = torch.empty(one.tensor.shape, dtype=one.tensor.dtype, pin_memory=True)
        buffer.copy_(one.tensor, non_blocking=True)
        return buffer
