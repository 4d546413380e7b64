"""Stop signals before there are workers: the launcher ends at once with the exit code of a stop; nothing has begun.

Installed before anything slow is imported, so that a scheduler's signal in the first seconds is a stop as well. That is
why the signals and the code of `titan.runtime` stand here again: a test holds them equal. The exception that ends the
launcher can be lost in what is being imported (a bare except, a destructor) or come out of it as another (an extension
module says ImportError), so that the wish is noted as well, and `asked` is looked at before the first worker starts.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
STOPPED = 75
_asked = False


def asked() -> bool:
    """Whether a stop was asked for, though its exception may have been lost."""
    return _asked


def stop() -> NoReturn:
    """Notes the wish and ends the launcher."""
    global _asked
    _asked = True
    raise SystemExit(STOPPED)


def unless_stopped(work: Callable[[], int]) -> int:
    """What `work` returns or raises; but a stop that came out of it as another error is a stop."""
    try:
        return work()
    except Exception:
        if _asked:
            stop()
        raise


@contextmanager
def stop_at_once() -> Iterator[None]:
    """From the main thread, as Python requires of handlers; those that were there come back at the end."""
    global _asked
    own, _asked = os.getpid(), False

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() == own:
            stop()
        # Processes that the preparation started inherit the handler; they end as they would have without it.
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
