"""`titan config`: the schema for editors, the reference page, a file as it is read, two compared, an old one rewritten.

No torch. What is made goes to standard output, or to `-o FILE`; what is said about it to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from titan import config as configuration
from titan.commands.arguments import OVERRIDES, config_parser, parse
from titan.runtime.errors import DONE, FAILED, REFUSED

_USAGE = f"""usage: titan config COMMAND ...

  schema [-o FILE]                     JSON Schema of a file, for editors (configs/schema.json is this)
  docs [-o FILE]                       the reference page of all keys (docs/config.md is this)
  show CONFIG {OVERRIDES}   the whole configuration, each value with where it comes from
  diff A B {OVERRIDES}      what differs between two files; ends with 1 where something does
  migrate OLD.toml [-o NEW.toml]       rewrites a file of older names, and says what changed"""


def main(argv: Sequence[str]) -> int:
    """Returns the exit code: 0, 1 where `diff` finds a difference, 2 for what is refused."""
    commands: dict[str, Callable[[Sequence[str]], int]] = {
        "schema": lambda rest: _generated("schema", _schema, rest),
        "docs": lambda rest: _generated("docs", _docs, rest),
        "show": _show,
        "diff": _diff,
        "migrate": _migrate,
    }
    if argv and argv[0] in ("-h", "--help"):
        print(_USAGE)
        return DONE
    if not argv or argv[0] not in commands:
        print(f"titan config: unknown command {argv[0]!r}\n{_USAGE}" if argv else _USAGE, file=sys.stderr)
        return REFUSED
    try:
        return commands[argv[0]](argv[1:])
    except configuration.ConfigError as error:
        print(error, file=sys.stderr)
        return REFUSED


def _schema() -> str:
    from titan.config.reference import json_schema

    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _docs() -> str:
    from titan.config.reference import page

    return page()


def _generated(name: str, make: Callable[[], str], argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"titan config {name}", allow_abbrev=False)
    parser.add_argument("-o", metavar="FILE", dest="target", help="write here instead of to standard output")
    return _write(make(), parser.parse_args(argv).target)


def _show(argv: Sequence[str]) -> int:
    options = parse(config_parser("config show", "Print a configuration, each value with its origin."), argv)
    print(configuration.dump(configuration.load(options.config, options.overrides)), end="")
    return DONE


def _diff(argv: Sequence[str]) -> int:
    parser = config_parser("config diff", "Say what differs between two configurations.", "OTHER")
    parser.add_argument("other", metavar="OTHER", help="the other TOML file")
    options = parse(parser, argv)
    one, other = (configuration.load(path, options.overrides) for path in (options.config, options.other))
    numbers = set(configuration.numerics(one)) | set(configuration.numerics(other))
    left, right = (_leaves(config.model_dump(), "") for config in (one, other))
    found = [key for key in [*left, *(key for key in right if key not in left)] if left.get(key) != right.get(key)]
    for title, keys in (
        ("changes the numbers of the run", [key for key in found if key in numbers]),
        ("does not", [key for key in found if key not in numbers]),
    ):
        if keys:
            print(f"{title}:")
        for key in keys:
            print(f"  {key} {configuration.value_text(left.get(key))} -> {configuration.value_text(right.get(key))}")
    return FAILED if found else DONE


def _leaves(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def _migrate(argv: Sequence[str]) -> int:
    from titan.config.files import read_text
    from titan.config.migrate import migrate

    parser = argparse.ArgumentParser(prog="titan config migrate", allow_abbrev=False)
    parser.add_argument("old", metavar="OLD.toml")
    parser.add_argument("-o", metavar="NEW.toml", dest="target", help="write here instead of to standard output")
    options = parser.parse_args(argv)
    try:
        done = migrate(read_text(Path(options.old)))
    except ValueError as error:
        if isinstance(error, configuration.ConfigError):
            raise
        problem = configuration.Problem("", f"not valid TOML: {error}.", origin=options.old)
        raise configuration.ConfigError([problem]) from None
    for change in done.changes:
        print(f"changed: {change}", file=sys.stderr)
    for left in done.left:
        print(f"left as it is, no counterpart: {left}", file=sys.stderr)
    if not done.changes and not done.left:
        print("nothing to change", file=sys.stderr)
    return _write(done.text, options.target)


def _write(text: str, target: str | None) -> int:
    if target is None:
        print(text, end="")
        return DONE
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        problem = configuration.Problem("-o", f"cannot be written: {error.strerror}.", origin=target)
        raise configuration.ConfigError([problem]) from None
    return DONE
