"""Stop signals before there are workers: the launcher ends at once with the exit code of a stop; nothing has begun.

Installed before anything slow is imported, so that a scheduler's signal in the first seconds is a stop as well. That is
why the signals and the code of `titan.runtime` stand here again: a test holds them equal.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
STOPPED = 75


@contextmanager
def stop_at_once() -> Iterator[None]:
    """From the main thread, as Python requires of handlers; those that were there come back at the end."""
    own = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        # Processes that the preparation started inherit the handler; they end as they would have without it.
        raise SystemExit(STOPPED if os.getpid() == own else 128 + number)

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
