"""The progress of tokenizing: a bar on a terminal, else two log lines (this one, and the sum at the end)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from titan.data.documents import Source, Tally

log = logging.getLogger("titan.data")


@contextmanager
def shown(source: Source, workers: int) -> Iterator[Callable[[Tally], None]]:
    """Shows a bar on stderr where that is a terminal. What it yields is called with the tally after each batch."""
    if not sys.stderr.isatty():
        log.info("tokenizing %s (%d processes)", source.name, workers)
        yield lambda tally: None
        return

    from rich.console import Console  # here: only where there is a bar
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"tokenizing {source.name}", total=source.total)
        # The total again each time: some sources learn it when reading begins.
        yield lambda tally: bar.update(task, completed=tally.done, total=source.total)
