"""`titan check`: prints model, degrees and batch of a run, or all problems of its configuration, for a world that need
not exist. Imports no torch, and takes half a second.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from titan import config as configuration
from titan.commands.arguments import config_parser, parse, positive
from titan.runtime.errors import DONE, REFUSED


def main(argv: Sequence[str]) -> int:
    """Checks one file, for the world that its degrees ask for or that `--world-size` names."""
    parser = config_parser("check", "Say whether a configuration can run.", "[--world-size N]")
    parser.add_argument("--world-size", type=positive, metavar="N", help="processes; default: what the degrees ask for")
    options = parse(parser, argv)
    try:
        config = configuration.load(options.config, options.overrides)
        size = options.world_size or configuration.world_size_wanted(config, "cpu")
        resolved = configuration.resolve(config, size, "cpu")
    except configuration.ConfigError as error:
        count = len(error.problems)
        print(f"{count} problems:\n{error}" if count > 1 else error, file=sys.stderr)
        return REFUSED
    batch, args = resolved.batch, resolved.model_args
    for warning in resolved.warnings:
        print(f"warning: {warning}")
    print(
        f"model    {config.model.name} {config.model.flavor}, {resolved.spec.parameter_count(args):,} parameters, "
        f"{resolved.spec.n_layers(args)} layers, vocabulary {args.vocab_size}"
    )
    print(f"mesh     {resolved.degrees} ({size} process{'es' if size > 1 else ''})")
    print(
        f"batch    {batch.global_rows} rows a step = {batch.rows} rows x {batch.accumulation} accumulation x "
        f"{resolved.degrees.batch} batch ranks; microbatches of {batch.microbatch_size}"
    )
    return DONE
