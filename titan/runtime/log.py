"""Where messages go: rank 0's to the console, every rank's to `log/rank-N.txt` in the run folder, libraries' only
there.

The console shows what `titan` loggers say, from one process. Whatever else would reach it (Python warnings,
handlers that libraries bring along, C++ messages) is of use after a failure and noise before: `own_streams` turns
the standard streams themselves to the file. It is for a process that is ours alone; `start` touches nothing but
logging.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from titan.config.problems import ConfigError, Problem

if TYPE_CHECKING:
    from rich.console import Console

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_FILE_ONLY = "file_only"
FILE_ONLY = {_FILE_ONLY: True}
"""`log.error(..., extra=FILE_ONLY)`: not for the console."""

_ours: list[tuple[logging.Logger, logging.Handler]] = []
_console_error: TextIO | None = None


def path(folder: str | os.PathLike[str], rank: int) -> Path:
    """The log file of a rank."""
    return Path(folder) / "log" / f"rank-{rank}.txt"


def make_folder(folder: str | os.PathLike[str]) -> Path:
    """Makes the run folder and its log folder. Raises ConfigError where that cannot be."""
    logs = Path(folder) / "log"
    try:
        logs.mkdir(parents=True, exist_ok=True)
        if not os.access(logs, os.W_OK):
            raise PermissionError(13, os.strerror(13), str(logs))
    except OSError as error:
        text = f"cannot be made or written to: {error.strerror} ({error.filename}); name another folder."
        raise ConfigError([Problem("job.dump_folder", text, value=f'"{os.fspath(folder)}"')]) from None
    return logs


def start(folder: str | os.PathLike[str], rank: int, *, color: bool = True) -> None:
    """Sends records of INFO and up to this rank's file, and those of `titan` to the console if this is rank 0.

    Called again, it replaces what it set up before. Raises ConfigError for a folder that cannot be written to.
    """
    make_folder(folder)
    stop()
    file = logging.FileHandler(path(folder, rank), encoding="utf-8")
    file.setFormatter(logging.Formatter(_FORMAT))
    _add(logging.getLogger(), file)
    logging.captureWarnings(True)
    logging.getLogger("titan").setLevel(logging.INFO)
    if rank == 0:
        _to_console(color)


def start_launcher(folder: str | os.PathLike[str], *, color: bool = True) -> None:
    """For the launcher: our messages to the console, torch elastic's and Python warnings to `log/launcher.txt`."""
    stop()
    _to_console(color)
    file = logging.FileHandler(make_folder(folder) / "launcher.txt", encoding="utf-8", delay=True)
    file.setFormatter(logging.Formatter(_FORMAT))
    logging.captureWarnings(True)
    for name in ("torch.distributed.elastic", "titan.launch", "py.warnings"):
        logger = logging.getLogger(name)
        logger.propagate = False  # torch's own handler, further up, writes to the console
        _add(logger, file)


def stop() -> None:
    """Closes the file and takes the handlers away."""
    for logger, handler in _ours:
        logger.removeHandler(handler)
        handler.close()
    _ours.clear()
    logging.captureWarnings(False)


def own_streams(folder: str | os.PathLike[str], rank: int) -> None:
    """Turns this process's standard error, and on other ranks than 0 its standard output, to the rank's log file.

    At the level of file descriptors, so that C++ and child processes are included. `console_error` keeps the original.
    """
    global _console_error
    make_folder(folder)
    _console_error = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")
    target = os.open(path(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(target, 2)
    if rank != 0:
        os.dup2(target, 1)
    os.close(target)


def console_error() -> TextIO:
    """The standard error that the user sees."""
    return sys.stderr if _console_error is None else _console_error


def _to_console(color: bool) -> None:
    ours = logging.getLogger("titan")
    ours.setLevel(logging.INFO)
    _add(ours, _ConsoleHandler(color))


def _add(logger: logging.Logger, handler: logging.Handler) -> None:
    logger.addHandler(handler)
    _ours.append((logger, handler))


class _ConsoleHandler(logging.Handler):
    """Plain lines on standard output, with rich's highlighting of numbers and paths on a terminal."""

    def __init__(self, color: bool) -> None:
        super().__init__(logging.INFO)
        self._color = color
        self._console: Console | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, _FILE_ONLY, False):
            return
        try:
            if self._console is None:
                from rich.console import Console

                self._console = Console(no_color=not self._color, highlight=self._color, soft_wrap=True)
            prefix = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
            self._console.print(prefix + record.getMessage(), markup=False)
        except BrokenPipeError:  # `| head`: whoever read has seen enough, and the file has it all
            logging.getLogger("titan").removeHandler(self)
        except Exception:
            self.handleError(record)
