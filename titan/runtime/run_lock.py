"""One run at a time in a run folder: rank 0 holds a lock on `run.lock` there for as long as it lives.

Two runs would write the same checkpoints and metrics. The lock is the system's (POSIX, which NFS has too): it is gone
with the process, however that ends, and the file that stays behind means nothing. Workers whose launcher was killed
stop in order within `ORPHAN_GRACE_SECONDS`, so for those a new start waits. The launcher looks before it starts
anything.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any, TextIO

from titan.config.problems import ConfigError, Problem
from titan.runtime.signals import LAUNCHER_PID, ORPHAN_GRACE_SECONDS

NAME = "run.lock"
_held: dict[Path, TextIO] = {}  # open until the process ends: a POSIX lock goes with the first close of its file
log = logging.getLogger("titan")


def hold(folder: str | os.PathLike[str]) -> None:
    """Takes the lock of a run folder, which exists, for the rest of this process. To be called by rank 0.

    Raises ConfigError where another process holds it. Where the file system has no locks, says so and goes on.
    """
    if (place := Path(folder).resolve()) in _held:
        return
    if file := _lock(folder):
        _held[place] = file
        launcher = int(os.environ.get(LAUNCHER_PID, "0"))
        with contextlib.suppress(OSError):  # a full disk: who holds the lock is only for another's message
            file.truncate(0)
            file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "launcher": launcher}))
            file.flush()


def wait_until_free(folder: str | os.PathLike[str]) -> None:
    """As `hold`, and lets go of it at once: for the launcher, before the workers that will hold it."""
    if file := _lock(folder):
        file.close()


def _lock(folder: str | os.PathLike[str]) -> TextIO | None:
    path = Path(folder) / NAME
    until = time.monotonic() + ORPHAN_GRACE_SECONDS + 5
    told = False
    while True:
        try:
            file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (stays open for as long as the lock is held)
        except OSError as error:
            text = f"cannot be written to: {error.strerror} ({error.filename}); name another folder."
            raise ConfigError([_problem(folder, text)]) from None
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # POSIX names both for a lock that another holds
            file.seek(0)
            holder = _holder(file.read())
            file.close()
            if not _orphaned(holder) or time.monotonic() > until:
                raise ConfigError([_busy(folder, holder)]) from None
            if not told:
                log.info("the launcher of the run in this folder was killed: waiting until its workers have stopped")
                told = True
            time.sleep(0.2)
        except OSError as error:
            log.warning("%s: no locks here (%s): that no other run writes to this folder is not checked", path, error)
            file.close()
            return None
        else:
            return file


def _holder(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:  # read while it was being written
        return {}
    return found if isinstance(found, dict) else {}


def _orphaned(holder: dict[str, Any]) -> bool:
    """Whether the launcher that started the holder is gone from this machine."""
    if not holder.get("launcher") or holder.get("host") != socket.gethostname():
        return False
    try:
        os.kill(holder["launcher"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def _busy(folder: str | os.PathLike[str], holder: dict[str, Any]) -> Problem:
    by = f" (process {holder['launcher'] or holder['pid']} on {holder['host']})" if len(holder) == 3 else ""
    text = f"another run is writing to this folder{by}: wait for it, stop it, or name another folder."
    return _problem(folder, text)


def _problem(folder: str | os.PathLike[str], text: str) -> Problem:
    return Problem("job.dump_folder", text, value=json.dumps(os.fspath(folder), ensure_ascii=False))
