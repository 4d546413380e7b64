"""The table of `titan parity`, and the same as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from titan.parity.run import LeftOut, Row
from titan.parity.verdict import KINDS

_TITLES = {"loss": "loss", "grad_norm": "grad norm", "gradients": "gradients", "weights": "weights"}
_WIDTH = 170
"""Columns where the output is no terminal."""


def line(row: Row) -> str:
    """Progress: one finished row."""
    if row.noise:
        return f"{row.name} measured in {row.seconds:.1f} s"
    processes = f"{row.processes} process{'es' if row.processes > 1 else ''}"
    return f"{row.name}: {_verdict(row)} ({processes}, {row.seconds:.1f} s)"


def show(rows: Sequence[Row], left_out: Sequence[LeftOut], console: Console) -> None:
    """Prints the table, what was left out, the errors, and the last word."""
    table = Table(box=None, pad_edge=False)
    for title in ("layout", "processes", "initial", *(_TITLES[kind] for kind in KINDS)):
        table.add_column(title, justify="right" if title != "layout" else "left", no_wrap=True)
    table.add_column("worst parameter")
    table.add_column("verdict", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    for one in left_out:
        console.print(f"left out: {one.layout.text}: {one.why}", markup=False, highlight=False, soft_wrap=True)
    for row in rows:
        if row.error:
            console.print(f"\n{row.name}: {row.error}", markup=False, highlight=False, soft_wrap=True)
    red = failed(rows)
    ran = [row for row in rows if not row.noise]
    word = f"failed: {'; '.join(red)}" if red else f"all {len(ran)} layouts train like one process"
    console.print(word, markup=False, highlight=False, soft_wrap=True)


def failed(rows: Sequence[Row]) -> list[str]:
    """Names of the layouts that are beyond a limit or did not run."""
    return [row.name for row in rows if row.failed]


def document(rows: Sequence[Row], left_out: Sequence[LeftOut], **facts: Any) -> dict[str, Any]:
    """What `--json` prints; a difference that is not finite is null."""
    noise = [_entry(row) for row in rows if row.noise]
    layouts = [_entry(row) for row in rows if not row.noise]
    skipped = [{"layout": one.layout.text, "why": one.why} for one in left_out]
    return {**facts, "ok": not failed(rows), "noise": noise, "layouts": layouts, "left_out": skipped}


def wide(**options: Any) -> Console:
    """A console that does not fold the table where nobody looks at it."""
    console = Console(**options)
    return console if console.is_terminal else Console(**options, width=_WIDTH)


def _entry(row: Row) -> dict[str, Any]:
    kinds = {
        one.kind: {"value": _finite(one.value), "limit": _finite(one.limit), "parameter": one.fqn or None}
        for one in row.findings
    }
    return {
        "layout": row.name,
        "processes": row.processes,
        "initial": None if row.error else row.initial,
        **{kind: kinds.get(kind) for kind in KINDS},
        "failed": list(row.failed),
        "error": row.error or None,
        "seconds": round(row.seconds, 2),
    }


def _cells(row: Row) -> list[Text | str]:
    if row.error:
        return [Text(row.name), str(row.processes), *[""] * (len(KINDS) + 2), _mark("ERROR", True)]
    initial = "" if row.noise else "same bits" if row.initial else "DIFFER"
    cells: list[Text | str] = [Text(row.name), str(row.processes), _mark(initial, not row.initial)]
    cells += [_mark(f"{one.value:.1e}", not one.within) for one in row.findings]
    named = [one for one in row.findings if one.fqn]
    worst = max(named, key=lambda one: (not one.within, one.kind == "gradients"))
    return [*cells, Text(worst.fqn), _mark("" if row.noise else _verdict(row), bool(row.failed))]


def _verdict(row: Row) -> str:
    return "ok" if not row.failed else "ERROR" if row.error else f"FAILED: {', '.join(row.failed)}"


def _mark(text: str, bad: bool) -> Text:
    return Text(text, style="bold red" if bad else "")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
