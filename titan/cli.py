"""The `titan` command: a table of subcommands, each a module that is imported when it is asked for.

So help and `titan check` answer at once, and a command costs nothing to the others. Nothing slow is imported here: the
launcher takes over the signals as the first thing it does. To add one: a module under
`titan/commands` with `main(argv) -> exit code`, and a line here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from titan import __version__

COMMANDS = {
    "launch": ("titan.launch", "start the processes of a run on this machine (what train.sh does)"),
    "train": ("titan.commands.train", "one process of a run: alone, or under torchrun"),
    "check": ("titan.commands.check", "say whether a configuration can run, and its degrees and batch"),
    "plan": ("titan.commands.plan", "predict memory, traffic and time of a run on any devices; search layouts"),
    "config": ("titan.commands.config", "show, compare and migrate configurations; schema and reference page"),
    "checkpoint": ("titan.commands.checkpoint", "list, show or verify checkpoints"),
    "parity": ("titan.commands.parity", "compare layouts with one process, with real processes"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns its exit code (see `titan.runtime.errors`)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--version"]:
        print(f"titan {__version__}")
        return 0
    if arguments[:1] in (["-h"], ["--help"]):
        print(_usage())
        return 0
    if not arguments or arguments[0] not in COMMANDS:
        if arguments:
            print(f"titan: unknown command {arguments[0]!r}", file=sys.stderr)
        print(_usage(), file=sys.stderr)
        from titan.runtime.errors import REFUSED

        return REFUSED
    module, _ = COMMANDS[arguments[0]]
    code: int = importlib.import_module(module).main(arguments[1:])
    return code


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {told}" for name, (_, told) in COMMANDS.items()]
    top = "usage: titan COMMAND ...\n\nTrains language models from one TOML file at any layout.\n"
    return "\n".join([top, *lines, "\ntitan COMMAND --help says more of one."])
