"""Who waited and who did not arrive, from what the watchdogs of this node's workers have left in the run folder.

When collectives run into their timeout every waiting rank fails, and none of their errors says whom they waited for.
A rank that left no record (`titan.faults.hang`) was stopped or stuck where no thread of Python runs; one that left a
record and was in no collective went astray before it. On several nodes each launcher knows its own ranks only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from titan.faults.hang import Silence, read_record, record_path


@dataclass(frozen=True)
class Hang:
    """A hang of this node's ranks.

    Attributes:
        absent: the rank that the others waited for; None where all wait, in different collectives perhaps, or for
            another node.
        lines: one for each group of ranks, for the user.
    """

    absent: int | None
    lines: list[str]


def clear(folder: Path, ranks: Sequence[int]) -> None:
    """Removes what an earlier attempt left."""
    for rank in ranks:
        record_path(folder, rank).unlink(missing_ok=True)


def find(folder: Path, ranks: Sequence[int]) -> Hang | None:
    """The hang that the ranks' records tell of; None where no rank has left one."""
    records = {rank: read_record(folder, rank) for rank in ranks}
    told = {rank: record for rank, record in records.items() if record is not None}
    if not told:
        return None
    lines = []
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, record in told.items():
        groups.setdefault((record.doing, _where(record)), []).append(rank)
    for (doing, where), members in groups.items():
        lines.append(f"{_ranks(members)}: {doing}, {where}")
    silent = [rank for rank in ranks if rank not in told]
    if silent:
        lines.append(f"{_ranks(silent)}: no sign of life; stopped, or stuck in code that does not let Python run")
    astray = [rank for rank, record in told.items() if record.waits_in is None]
    absent = next(iter([*silent, *astray]), None)
    return Hang(absent, lines)


def message(hang: Hang) -> str:
    """The failure of the rank that did not arrive."""
    others = hang.lines[0]
    return f"did not arrive where the others wait ({others})"


def _where(record: Silence) -> str:
    return f"waits in {record.waits_in}" if record.waits_in else f"in no collective, at {record.place}"


def _ranks(members: Sequence[int]) -> str:
    return f"rank{'s' if len(members) > 1 else ''} {', '.join(map(str, members))}"
