"""What a rank knows when nothing moves: where it stands, which collective it waits in, and all its stacks.

A thread watches the signs of progress that the training loop gives. Before the collective's own timeout would end the
process it writes, into the run folder: `log/rank-N.stacks.txt` (all Python stacks), the flight recorder's dump, and
`log/rank-N.hang.json`, from which the launcher tells who waits and who did not arrive. A rank that is stopped, or stuck
in code that holds the interpreter, writes nothing, which says as much.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from titan.faults.collectives import Pending, dump, pending

log = logging.getLogger("titan")
_SHARE_OF_TIMEOUT = 0.6
_LOOKS = 20
_INNERMOST = 3
_DISTRIBUTED = f"{os.sep}torch{os.sep}distributed{os.sep}"


@dataclass(frozen=True)
class Silence:
    """What `log/rank-N.hang.json` holds.

    Attributes:
        rank: of the job.
        doing: the phase of the training loop, with its step.
        seconds: since the last sign of progress.
        waits_in: the collective that this rank has entered and not left, None where there is none.
        place: file, line and function at which the training thread stands.
        time: seconds since the epoch.
    """

    rank: int
    doing: str
    seconds: float
    waits_in: str | None
    place: str
    time: float


def record_path(folder: str | os.PathLike[str], rank: int) -> Path:
    return Path(folder) / "log" / f"rank-{rank}.hang.json"


def read_record(folder: str | os.PathLike[str], rank: int) -> Silence | None:
    """What the rank left, None where it left nothing."""
    try:
        return Silence(**json.loads(record_path(folder, rank).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


class Watchdog:
    """Watches the calling thread until `close`.

    Args:
        folder: the run folder.
        rank: of the job.
        traces: path of this rank's flight recorder dump, None: no recorder.
        timeout: of the collectives, in seconds; `set_timeout` changes it.
    """

    def __init__(self, folder: Path, rank: int, *, traces: Path | None, timeout: float) -> None:
        self._folder, self._rank, self._traces, self._timeout = folder, rank, traces, timeout
        self._thread_id = threading.get_ident()
        self._said: tuple[str, float] = ("starting", time.monotonic())
        self._reported: tuple[str, float] | None = None
        self._closed = threading.Event()
        self._clear()
        self._thread = threading.Thread(target=self._watch, name="titan-watchdog", daemon=True)
        self._thread.start()

    def beat(self, doing: str) -> None:
        """A sign of progress: what the training loop does from here on."""
        self._said = (doing, time.monotonic())

    def set_timeout(self, seconds: float) -> None:
        self._timeout = seconds

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self._timeout / _LOOKS)):
            said = self._said
            if self._reported is not None and self._reported is not said:
                log.warning("rank %d goes on: %s", self._rank, said[0])
                self._reported = None
                self._clear()
            silent = time.monotonic() - said[1]
            if self._reported is None and silent > _SHARE_OF_TIMEOUT * self._timeout:
                self._reported = said
                self._report(said[0], silent)

    def _report(self, doing: str, silent: float) -> None:
        stacks_of_threads = _stacks(self._thread_id)
        place = _place(stacks_of_threads[0])
        waits_in = _described(pending()) or _call_of(stacks_of_threads)
        record = Silence(self._rank, doing, silent, waits_in, place, time.time())
        path = record_path(self._folder, self._rank)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(record)), encoding="utf-8")
        temporary.replace(path)
        stacks = path.with_name(f"rank-{self._rank}.stacks.txt")
        with open(stacks, "w", encoding="utf-8") as file:
            file.write(f"rank {self._rank}, {doing}, silent for {silent:.1f} s, waits in {waits_in}\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        if self._traces is not None:
            dump(self._traces)
        log.warning(
            "rank %d: no progress for %.0f s: %s; waits in %s, at %s; stacks in %s",
            self._rank,
            silent,
            doing,
            waits_in or "no collective",
            place,
            stacks,
        )

    def _clear(self) -> None:
        record_path(self._folder, self._rank).unlink(missing_ok=True)


def _described(waiting: list[Pending]) -> str | None:
    if not waiting:
        return None
    more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return f"{waiting[0]}{more}"


def _stacks(first: int) -> list[list[traceback.FrameSummary]]:
    """Frames of all threads but this one, innermost first; the training thread's stack comes first."""
    frames = sys._current_frames()
    order = sorted(frames.keys() - {threading.get_ident()}, key=lambda thread: thread != first)
    return [list(reversed(traceback.extract_stack(frames[thread]))) for thread in order]


def _call_of(stacks: list[list[traceback.FrameSummary]]) -> str | None:
    """The call into torch.distributed that a thread stands in; gloo's recorder has no sends and receives. On an
    accelerator the hooks of the backward run in a thread of autograd's."""
    for stack in stacks:
        for one in stack[:_INNERMOST]:
            if _DISTRIBUTED in one.filename:
                return f"{one.name} ({one.filename[one.filename.index(_DISTRIBUTED) + 1 :]}:{one.lineno})"
    return None


def _place(stack: list[traceback.FrameSummary]) -> str:
    """Where a thread stands in our code or a user's; in torch's where there is none of it."""
    own = next((one for one in stack if f"{os.sep}torch{os.sep}" not in one.filename), stack[0])
    return f"{own.filename}:{own.lineno} in {own.name}"
