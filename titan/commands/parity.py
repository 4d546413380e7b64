"""`titan parity`: whether layouts train like one process, from one file, with real processes.

What to run after changing a model or a parallelism, or upgrading PyTorch. Exit 0: all do; 1: some do not, and the table
names them; 2: the file or a layout is refused.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from titan.commands.arguments import config_parser, parse, positive
from titan.parity.faults import NAMES
from titan.runtime.errors import DONE, FAILED, main_with_errors

OPTIONS = '[--layouts "tp=2; pp=2,schedule=DualPipeV"] [--steps N] [--json]'


def main(argv: Sequence[str]) -> int:
    """Runs the oracle and the layouts, prints the table, and returns the exit code."""
    parser = config_parser("parity", "Compare layouts with one process, over a few steps from the same file.", OPTIONS)
    parser.add_argument(
        "--layouts",
        action="append",
        default=[],
        metavar="LIST",
        help="layouts separated by ;, each name=value,...: dp_replicate dp_shard tp pp cp schedule rotate microbatch "
        "accumulation local_batch ac compile reshard balance, or any key with a dot; can be given again. "
        "Default: every parallelism and schedule, and mixes on up to 8 processes",
    )
    parser.add_argument("--steps", type=positive, default=5, metavar="N", help="optimizer steps (default 5)")
    parser.add_argument("--timeout", type=positive, default=900, metavar="S", help="seconds a layout (default 900)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")
    parser.add_argument("--inject", choices=NAMES, help=argparse.SUPPRESS)
    options = parse(parser, argv)
    return main_with_errors(lambda: _parity(options))


def _parity(options: argparse.Namespace) -> int:
    from titan.parity import layouts, report, run

    named = bool(options.layouts)
    chosen = layouts.parse(options.layouts or [";".join(layouts.DEFAULT)])
    progress = report.wide(stderr=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="titan-parity-") as name:
        folder = Path(name)
        setting = run.prepare(options.config, options.overrides, folder)
        plans, left_out = run.plan(setting, chosen, named=named)
        found = run.run(setting, plans, folder, steps=options.steps, fault=options.inject, timeout=options.timeout)
        with progress.status("") as status:
            status.update(f"oracle, and {len(plans)} layouts of {options.steps} steps")
            for row in found:
                rows.append(row)
                done = sum(not row.noise for row in rows)
                progress.print(f"[{done}/{len(plans)}] {report.line(row)}", markup=False, highlight=False)
    if options.json:
        print(json.dumps(report.document(rows, left_out, config=options.config, steps=options.steps), indent=2))
    else:
        report.show(rows, left_out, report.wide())
    return FAILED if report.failed(rows) else DONE
