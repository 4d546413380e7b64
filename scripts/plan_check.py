"""Predicted against measured: the peak of live bytes at every layout of tests/plan/layouts.py, with a model of 227 MB.

    python scripts/plan_check.py [NAME ...]     Markdown rows, one a pipeline rank; a part of a name chooses layouts

Real processes on gloo, one layout at a time, two steps each; about half a minute a layout on two cores and up to
3 GB. Exits with 1 where a prediction is off by more than a tenth.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.plan.layouts import LARGE, MEMORY, Layout
from tests.plan.runs import config, measured_peaks
from titan.config import resolve
from titan.parallelisms.mesh import coordinates
from titan.parity.ranks import run_ranks
from titan.plan.memory import memory

LIMIT = 0.1


def compare(name: str, world: int, layout: Layout) -> float:
    """Prints the rows of a layout; returns the largest relative error."""
    run = resolve(config(layout, LARGE), world, "cpu")
    measured: dict[int, int] = {}
    for rank, found in enumerate(run_ranks(measured_peaks, world, [(layout, LARGE)], timeout=900.0, fresh=True)):
        stage = coordinates(rank, run.degrees)["pp"]
        measured[stage] = max(measured.get(stage, 0), found[0])
    worst = 0.0
    for plan in memory(run, device_type="cpu"):
        error = plan.peak / measured[plan.rank] - 1
        worst = max(worst, abs(error))
        place = f"{name}, rank {plan.rank}" if run.degrees.pp > 1 else name
        sizes = f"{plan.peak / 2**20:,.1f} | {measured[plan.rank] / 2**20:,.1f}"
        print(f"| {place} | {sizes} | {error:+.1%} | {plan.where} |", flush=True)
    return worst


def main(chosen: list[str]) -> int:
    print("| layout | predicted, MiB | measured, MiB | error | where |\n|---|---|---|---|---|")
    layouts = {name: one for name, one in MEMORY.items() if not chosen or any(part in name for part in chosen)}
    return int(max(compare(name, *one) for name, one in layouts.items()) > LIMIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
