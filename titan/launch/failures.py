"""Which of several failed workers failed first, and what to say about it.

When one rank fails its peers fail too, most within the same second, and torch elastic's report orders by whole seconds:
it often names a rank that only lost its connection. Here a worker that the launcher itself ended comes last, one whose
error is about a peer before it, and among the rest the exact time decides.
"""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titan.runtime.errors import FAILED, INTERRUPTED, NOT_FINITE, REFUSED

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

_TAIL = 12


@dataclass(frozen=True)
class Failure:
    """One failed worker.

    Attributes:
        rank: in the whole run.
        exit_code: negative: the signal that ended it.
        message: one message for the user.
        trace: the traceback, "" where there is none or none is wanted.
        time: seconds since the epoch.
        secondary: it failed because of another process.
        log: its log file.
    """

    rank: int
    exit_code: int
    message: str
    trace: str
    time: float
    secondary: bool
    log: str

    @property
    def launcher_exit_code(self) -> int:
        """What the launcher ends with: codes that tell a queue not to start the run again are passed on."""
        return self.exit_code if self.exit_code in (REFUSED, NOT_FINITE, INTERRUPTED) else FAILED

    @property
    def is_final(self) -> bool:
        """Whether the same start would fail again."""
        return self.exit_code in (REFUSED, NOT_FINITE, INTERRUPTED)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Failure:
        return cls(**json.loads(text))

    @classmethod
    def of(cls, rank: int, found: ProcessFailure, *, ended: float, by_us: bool, log: Path) -> Failure:
        """From what torch elastic knows.

        Args:
            rank: in the whole run.
            found: exit code and the content of the error file.
            ended: when the launcher saw that the process had ended; the time of those that left no error file.
            by_us: the launcher ended it.
            log: its log file.
        """
        content: Any = found.error_file_data.get("message")
        more = content.get("extraInfo", {}) if isinstance(content, dict) else {}
        if not isinstance(content, dict):
            return cls(rank, found.exitcode, _of_exit(found.exitcode), "", ended, by_us, str(log))
        trace = "" if more.get("for_the_user") else str(more.get("py_callstack", ""))
        secondary = by_us or bool(more.get("about_a_peer"))
        when = float(more.get("time", more.get("timestamp", ended)))
        return cls(rank, found.exitcode, str(content["message"]), trace, when, secondary, str(log))

    def report(self) -> str:
        """The traceback, then as the last lines the error with its rank and where its log is."""
        lines = [self.trace.rstrip()] if self.trace else []
        if self.exit_code < 0 and (end := _last_lines(Path(self.log))):
            lines.append(f"last lines of {self.log}:\n{end}")
        if self.secondary:
            lines.append("no worker of this node failed first: the first error is in the log of another one.")
        return "\n".join([*lines, f"titan: rank {self.rank} failed: {self.message}", f"titan: its log: {self.log}"])


def first(failures: list[Failure]) -> Failure:
    """The failure that led to the others."""
    return min(failures, key=lambda one: (one.secondary, one.time, one.rank))


def _of_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code} and left no message"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (the system does that when memory runs out)" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"


def _last_lines(path: Path) -> str:
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL:])
    except FileNotFoundError:
        return ""
