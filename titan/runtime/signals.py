"""Signals that ask a run to stop in order: SIGTERM and SIGUSR1 (schedulers), SIGINT (Ctrl-C).

A handler sets a flag and nothing else: it may run between any two bytecodes. The trainer asks between steps, and
all ranks agree in the all-reduce that opens a step, since the signal reaches them at different steps. A second
SIGINT raises KeyboardInterrupt at once, for a run that does not come to its next step.

A worker whose launcher has died (killed, out of memory) stops in the same order, and leaves by force if that does
not come about: workers are in sessions of their own and would otherwise train on, unseen.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
LAUNCHER_PID = "TITAN_LAUNCHER_PID"
ORPHAN_GRACE_SECONDS = 60.0


class StopRequest:
    """Whether somebody asked this process to stop.

    One per process, since handlers are: `StopRequest.install()` hands out the same object each time.
    """

    _installed: StopRequest | None = None

    def __init__(self) -> None:
        self.requested = False
        self.reason: str | None = None
        self._interrupts = 0

    @classmethod
    def install(cls) -> StopRequest:
        """Takes over the stop signals of this process; from the main thread, as Python requires of handlers."""
        if cls._installed is None:
            cls._installed = cls()
            for number in STOP_SIGNALS:
                signal.signal(number, cls._installed._handle)
        return cls._installed

    def uninstall(self) -> None:
        """Gives the signals back their default actions."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        type(self)._installed = None

    def request(self, reason: str) -> None:
        """Asks for the stop as a signal would; for the time limit and the tests."""
        self.requested, self.reason = True, self.reason or reason

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            raise KeyboardInterrupt
        self.request(signal.Signals(number).name)


def watch_launcher(stop: StopRequest, *, interval: float = 1.0, grace: float = ORPHAN_GRACE_SECONDS) -> None:
    """Asks for a stop when the launcher named in the environment is no longer this process's parent.

    Args:
        stop: set with reason "launcher died".
        interval: seconds between two looks.
        grace: seconds until the process leaves by force; one that hangs in a collective never comes to its next step.
    """
    launcher = int(os.environ.get(LAUNCHER_PID, "0"))
    if not launcher:
        return

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(interval)
        stop.request("launcher died")
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, name="watch-launcher", daemon=True).start()
