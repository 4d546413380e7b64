"""The `titan` command: train, launch, check. Each subcommand loads what it needs, so that help and `check` answer
at once.

`titan train` is one process of a run: alone, or one of those that the launcher or torchrun started.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from titan import __version__

_OVERRIDES = "[--section.key=value ...]"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns its exit code (see `titan.runtime.errors`)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["launch"]:  # its own parser, the same as `python -m titan.launch`
        from titan.launch import main as launch

        return launch(arguments[1:])
    options = _parser().parse_args(arguments)
    if options.command == "check":
        return check(options.config, options.world_size, options.overrides)
    return train(options.config, options.overrides)


def train(path: str, overrides: Sequence[str]) -> int:
    """One process of a training run."""
    from titan.runtime.errors import main_with_errors
    from titan.runtime.signals import StopRequest, watch_launcher

    # First of all: until then a signal from a scheduler ends the process, and torch's import takes seconds.
    watch_launcher(StopRequest.install())
    return main_with_errors(lambda: _train(path, overrides))


def _train(path: str, overrides: Sequence[str]) -> int:
    from titan import config as configuration
    from titan.runtime import log
    from titan.runtime.distributed import rank_from_environment
    from titan.runtime.errors import DONE, STOPPED
    from titan.runtime.status import clear_status, read_status

    config = configuration.load(path, overrides)
    rank, _, world_size = rank_from_environment()
    folder = config.job.dump_folder
    launched = "TORCHELASTIC_RUN_ID" in os.environ
    log.start(folder, rank, color=not config.metrics.disable_color_printing)
    if not launched and world_size == 1:
        from titan.data import prepare

        clear_status(folder)
        prepare(config.training, config.model)  # shows its progress, so before the streams are turned to the log
    log.own_streams(folder, rank)
    from titan import trainer

    code = trainer.train(config)
    if launched:
        # To torch elastic anything but 0 is a failure; the launcher reads status.json.
        return DONE if code == STOPPED else code
    status = read_status(folder) or {}
    return STOPPED if code == DONE and status.get("status") == "stopped" else code


def check(path: str, world_size: int | None, overrides: Sequence[str]) -> int:
    """Prints the degrees and the batch of a run, or all problems of its configuration."""
    from titan import config as configuration
    from titan.runtime.errors import DONE, REFUSED

    try:
        config = configuration.load(path, overrides)
        size = world_size or configuration.world_size_wanted(config, "cpu")
        resolved = configuration.resolve(config, size, "cpu")
    except configuration.ConfigError as error:
        print(error, file=sys.stderr)
        return REFUSED
    batch = resolved.batch
    for warning in resolved.warnings:
        print(f"warning: {warning}")
    print(f"model    {config.model.name} {config.model.flavor}")
    print(f"mesh     {resolved.degrees} ({size} process{'es' if size > 1 else ''})")
    print(
        f"batch    {batch.global_rows} rows a step = {batch.rows} rows x {batch.accumulation} accumulation x "
        f"{resolved.degrees.batch} batch ranks; microbatches of {batch.microbatch_size}"
    )
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="titan", description="Trains language models from one TOML file at any layout."
    )
    parser.add_argument("--version", action="version", version=f"titan {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    told = {
        "launch": "start the processes of a run on this machine (what train.sh does)",
        "train": "one process of a run: alone, or under torchrun",
        "check": "say whether a configuration can run, and its degrees and batch",
    }
    for name, text in told.items():
        command = commands.add_parser(name, help=text, usage=f"titan {name} CONFIG {_OVERRIDES}")
        if name == "check":
            command.usage = f"titan check [--world-size N] CONFIG {_OVERRIDES}"
            command.add_argument(
                "--world-size", type=_positive, metavar="N", help="processes; default: what the degrees ask for"
            )
        command.add_argument("config", metavar="CONFIG", help="the TOML file")
        command.add_argument("overrides", nargs=argparse.REMAINDER, help="values that replace those of the file")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number of at least 1")
    return int(text)
