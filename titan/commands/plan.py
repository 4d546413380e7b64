"""`titan plan`: what a run will need and how fast it will be, for any world and device, before it costs anything.

Exit code 0 where it fits, 1 where it does not, 2 where the configuration is refused, with the messages of `check`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from titan.commands.arguments import config_parser, parse, positive
from titan.config import ConfigError
from titan.plan.devices import DEVICES, GIB
from titan.runtime.errors import DONE, FAILED, REFUSED

if TYPE_CHECKING:
    from rich.console import Console

    from titan.plan.build import Plan
    from titan.plan.request import Request, Target


def main(argv: Sequence[str]) -> int:
    """Plans one file."""
    words = "[--world-size N] [--device NAME] [--search] [--json] [--html FILE] [--trace FILE]"
    parser = config_parser("plan", "Predict memory, traffic and time of a run, with no accelerator.", words)
    parser.add_argument("--world-size", type=positive, metavar="N", help="devices; default: what the degrees ask for")
    parser.add_argument("--device", choices=sorted(DEVICES), default="h100", help="kind of device; default: h100")
    parser.add_argument("--gpus-per-node", type=positive, metavar="N", help="devices in a node; default: 8 GPUs")
    parser.add_argument("--memory", type=positive, metavar="GIB", help="memory of a device, instead of its usual one")
    parser.add_argument("--search", action="store_true", help="rank the layouts of this world instead")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--html", metavar="FILE", help="also write a page to look at")
    parser.add_argument("--trace", metavar="FILE", help="also write the timeline for Perfetto")
    options = parse(parser, argv)
    from titan.plan.request import Target, read  # torch is loaded from here on

    device = DEVICES[options.device]
    limit = options.memory * GIB if options.memory else device.memory
    target = Target(device, options.gpus_per_node or device.per_node, limit)
    try:
        request = read(options.config, options.overrides, options.world_size, target)
        if options.search:
            return _search(request, target, as_json=options.json)
        from titan.plan.build import make

        plan = make(request, target)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return REFUSED
    if not plan.fits:
        from titan.plan import remedy

        plan = replace(plan, remedy=remedy.find(plan))
    _write(plan, options.html, options.trace)
    if options.json:
        from titan.plan.report_data import data

        print(json.dumps(data(plan), indent=2))
    else:
        from titan.plan.report import show

        show(plan, _console())
        for path in filter(None, (options.html, options.trace)):
            print(f"written: {path}")
    return DONE if plan.fits else FAILED


def _search(request: Request, target: Target, *, as_json: bool) -> int:
    from titan.plan.report_data import search_data
    from titan.plan.search import search

    found = search(request, target)
    if as_json:
        print(json.dumps(search_data(found), indent=2))
    else:
        from titan.plan.report import show_search

        show_search(found, _console())
    return DONE if any(candidate.fits for candidate in found.ranked) else FAILED


def _write(plan: Plan, html: str | None, trace_file: str | None) -> None:
    if html:
        from titan.plan.html import page

        Path(html).write_text(page(plan), encoding="utf-8")
    if trace_file:
        from titan.plan.trace import trace

        Path(trace_file).write_text(json.dumps(trace(plan.time.timeline)), encoding="utf-8")


def _console() -> Console:
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=150)
