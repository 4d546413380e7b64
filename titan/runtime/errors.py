"""How a process of the run ends: its exit code, what the user reads, and the first error for the launcher.

Exit codes: 0 done, 1 failed, 2 refused (configuration or data: the same start would fail again), 3 not finite (so
would a restart), 75 stopped by agreement (a queue may start it again; EX_TEMPFAIL), 130 interrupted twice. An
exception class with an integer `exit_code`, and ConfigError, is written for the user: its message is shown without
traceback.

The error file is that of torch elastic (https://docs.pytorch.org/docs/stable/elastic/errors.html), which torchrun
reads too. Its timestamps are whole seconds, in which several ranks fail, and most of them only because a peer is
gone: so it also holds the exact time, and whether the error is about a peer.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from titan.config.problems import ConfigError
from titan.runtime import log as logs
from titan.runtime.signals import LAUNCHER_PID

DONE, FAILED, REFUSED, NOT_FINITE, STOPPED, INTERRUPTED = 0, 1, 2, 3, 75, 130

_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "socket closed",
    "remote process exited",
    "failed to recv",
    "connection refused",
    "timed out waiting",
    "application timeout caused pair closure",
    "collective operation timeout",
)
_STAGE = re.compile(r"\s*(\[Stage \d+\] failed to run \w+)")
log = logging.getLogger("titan")


def main_with_errors(main: Callable[[], int]) -> int:
    """Runs `main` and returns its exit code, or the one of the exception that it raised, which it reports.

    In a process group a failure ends the process at once and does not return: threads of the group or of a data loader
    may wait for peers for ever, and the peers learn of the failure by the closed connection.
    """
    try:
        return main()
    except SystemExit:
        raise
    except BaseException as error:
        code = exit_code(error)
        _record(error, code)
        _tell(error, code)
        if _in_group():
            _leave(code)
        return code


def exit_code(error: BaseException) -> int:
    if isinstance(error, ConfigError):
        return REFUSED
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    code = getattr(error, "exit_code", FAILED)
    return code if isinstance(code, int) else FAILED


def is_for_the_user(error: BaseException) -> bool:
    """Whether the message says all that there is to say, so that a traceback would bury it."""
    return isinstance(error, ConfigError | KeyboardInterrupt) or isinstance(getattr(error, "exit_code", None), int)


def summary(error: BaseException) -> str:
    """One message: the exception's own where it is for the user, else led by its type."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    text = str(error)
    if error.__cause__ is not None and (stage := _STAGE.match(text)):
        # torch's pipeline wraps what a stage raises into a list of its arguments.
        return f"{summary(error.__cause__)} ({stage[1]})"
    return text if is_for_the_user(error) else f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_about_a_peer(error: BaseException) -> bool:
    """Whether the error says that another process is gone, which then has the first error. By the texts of gloo and
    NCCL: both raise plain RuntimeErrors, or subclasses that say no more."""
    return any(
        isinstance(one, RuntimeError) and any(text in str(one).lower() for text in _PEER) for one in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _record(error: BaseException, code: int) -> None:
    """Writes torch elastic's error file, if a launcher asked for one and no earlier error of this process is in it."""
    text = summary(error)
    trace = text if is_for_the_user(error) else "".join(traceback.format_exception(error))
    if log.hasHandlers():  # without, logging's last resort is the console, which `_tell` is for
        log.error("%s", trace, extra=logs.FILE_ONLY)
    target = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not target:
        return
    now = time.time()
    more: dict[str, Any] = {"py_callstack": trace, "timestamp": str(int(now)), "time": now}
    more |= {"about_a_peer": is_about_a_peer(error), "for_the_user": is_for_the_user(error)}
    content = json.dumps({"message": {"message": text, "errorCode": code, "extraInfo": more}})
    with contextlib.suppress(FileExistsError), open(target, "x", encoding="utf-8") as file:
        file.write(content)


def _tell(error: BaseException, code: int) -> None:
    """Shows the error, unless our launcher will: it knows which one was the first."""
    if os.environ.get(LAUNCHER_PID) or (os.environ.get("RANK", "0") != "0" and is_about_a_peer(error)):
        return
    console = logs.console_error()
    if not is_for_the_user(error):
        print("".join(traceback.format_exception(error)), file=console)
    text = summary(error)
    if isinstance(error, ConfigError) and len(error.problems) > 1:
        text = f"{len(error.problems)} problems:\n{text}"
    print(f"titan: {text}", file=console, flush=True)


def _in_group() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _leave(code: int) -> NoReturn:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr, logs.console_error()):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
