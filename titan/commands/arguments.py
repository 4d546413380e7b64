"""What subcommands share on the command line: `CONFIG [options] [--section.key=value ...]`, in any order, and numbers.

An argument whose name has a dot is an override, and goes to `titan.config` as it is, with its value where that follows
as a word of its own. So does what no option of the command answers to: `titan.config` knows the names that were meant.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

OVERRIDES = "[--section.key=value ...]"


def config_parser(command: str, description: str, options: str = "") -> argparse.ArgumentParser:
    """A parser of `titan COMMAND CONFIG [options] [overrides]`, for `parse`.

    Args:
        command: the words after `titan`.
        description: one sentence, shown by --help.
        options: how usage shows the command's own options.
    """
    words = " ".join(word for word in ("titan", command, "CONFIG", options, OVERRIDES) if word)
    parser = argparse.ArgumentParser(prog=f"titan {command}", usage=words, description=description, allow_abbrev=False)
    parser.add_argument("config", metavar="CONFIG", help="the TOML file")
    return parser


def config_first(argv: Sequence[str]) -> list[str]:
    """The words with the value of `--job.config_file`, torchtitan's way to name the file, in front as CONFIG."""
    words = list(argv)
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--job.config_file" and (equals or place + 1 < len(words)):
            return [value if equals else words[place + 1], *words[:place], *words[place + (1 if equals else 2) :]]
    return words


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """The options of a command, with `.overrides`: a list of words for `titan.config.load`."""
    own: list[str] = []
    overrides: list[str] = []
    words = config_first(argv)
    while words:
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        if not (name.startswith("--") and "." in name):
            own.append(word)
            continue
        overrides.append(word)
        if not equals and words and not words[0].startswith("--"):
            overrides.append(words.pop(0))
    options, unknown = parser.parse_known_args(own)
    options.overrides = unknown + overrides
    return options


def positive(text: str) -> int:
    """A whole number of at least 1, for `type=`. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number of at least 1")
    return int(text)
