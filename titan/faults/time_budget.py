"""`job.time_limit`: stop while there is still time for a step and a save, by the times that both have taken so far.

The clock runs from the start of the launcher, since a queue's does too and does not begin anew at a restart. A rank
that finds the time too short says so in the all-reduce that opens a step, and all stop there.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable

STARTED = "TITAN_STARTED"
"""Environment variable: seconds since the epoch at which the launcher, or a run without one, started."""
_REMEMBERED = 8
_ASSUMED_SAVE_SECONDS, _ASSUMED_SAVE_SHARE = 60.0, 0.1


def started() -> float:
    """When this run's clock began; the first call in a process without a launcher begins it."""
    return float(os.environ.setdefault(STARTED, repr(time.time())))


class TimeBudget:
    """How much of the time is left, after what a further step and the save at the end will take.

    Args:
        limit: seconds; None: no limit.
        began: seconds since the epoch.
        clock: the time now.
    """

    def __init__(self, limit: int | None, began: float, clock: Callable[[], float] = time.time) -> None:
        self._limit, self._began, self._clock = limit, began, clock
        self._steps: deque[float] = deque(maxlen=_REMEMBERED)
        self._last = clock()
        self._saving: float | None = None
        self._longest_save: float | None = None

    def step_taken(self) -> None:
        """Call after each step and what belongs to it; the longest of the last eight counts."""
        now = self._clock()
        self._steps.append(now - self._last)
        self._last = now

    def save_begun(self) -> None:
        self._saving = self._clock()

    def save_done(self) -> None:
        """Call when nothing is being written any more, in the background either."""
        if self._saving is not None:
            self._longest_save = max(self._longest_save or 0.0, self._clock() - self._saving)
            self._saving = None

    def is_spent(self) -> bool:
        """Whether a step begun now, and the save after it, would not end within the limit."""
        if self._limit is None:
            return False
        assumed = min(_ASSUMED_SAVE_SECONDS, _ASSUMED_SAVE_SHARE * self._limit)
        save = assumed if self._longest_save is None else self._longest_save
        return self._clock() - self._began + max(self._steps, default=0.0) + save > self._limit
