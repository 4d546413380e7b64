"""`titan check`: prints model, data, degrees and batch of a run, or all problems of its configuration, for a world that
need not exist. Imports no torch, and takes half a second. Of the data it looks for the files, as a start does; it reads
none and asks no network.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from titan import config as configuration
from titan.commands.arguments import config_parser, parse, positive
from titan.data import DataError
from titan.data.sources import open_source
from titan.runtime.errors import DONE, REFUSED


def main(argv: Sequence[str]) -> int:
    """Checks one file, for the world that its degrees ask for or that `--world-size` names."""
    parser = config_parser("check", "Say whether a configuration can run.", "[--world-size N]")
    parser.add_argument("--world-size", type=positive, metavar="N", help="processes; default: what the degrees ask for")
    options = parse(parser, argv)
    try:
        config = configuration.load(options.config, options.overrides)
    except configuration.ConfigError as error:
        return _refuse([str(error)], len(error.problems))
    problems, count = [], 0
    try:
        size = options.world_size or configuration.world_size_wanted(config, "cpu")
        resolved = configuration.resolve(config, size, "cpu")
    except configuration.ConfigError as error:
        problems, count = [str(error)], len(error.problems)
    try:
        source = open_source(config.training)
    except DataError as error:
        problems, count = [*problems, str(error)], count + 1
    if problems:
        return _refuse(problems, count)
    batch, args = resolved.batch, resolved.model_args
    for warning in resolved.warnings:
        print(f"warning: {warning}")
    print(
        f"model    {config.model.name} {config.model.flavor}, {resolved.spec.parameter_count(args):,} parameters, "
        f"{resolved.spec.n_layers(args)} layers, vocabulary {args.vocab_size}"
    )
    print(f"data     {source.name}")
    print(f"mesh     {resolved.degrees} ({size} process{'es' if size > 1 else ''})")
    print(
        f"batch    {batch.global_rows} rows a step = {batch.rows} rows x {batch.accumulation} accumulation x "
        f"{resolved.degrees.batch} batch ranks; microbatches of {batch.microbatch_size}"
    )
    return DONE


def _refuse(texts: Sequence[str], count: int) -> int:
    print("\n".join([f"{count} problems:"] * (count > 1) + list(texts)), file=sys.stderr)
    return REFUSED
