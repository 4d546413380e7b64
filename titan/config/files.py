"""Reads a TOML file and the files that it extends into one nested table, and remembers where each value came from.

`extends = "base.toml"` (or a list, later ones win) is relative to the file that says so; tables merge key by key,
everything else replaces. Whatever is wrong with a file (missing, a folder, unreadable, not UTF-8, invalid TOML, extends
itself) is one ConfigError.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from titan.config.lines import line_numbers
from titan.config.problems import ConfigError, Problem, closest


@dataclass
class Source:
    """Values as nested tables, and for each dotted key where it was set: `file:line` or "command line"."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def update(self, other: Source) -> None:
        """Lays `other` over this one."""
        merge(self.values, other.values)
        self.origins.update(other.origins)


def merge(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    """Lays `over` over `base`, in place: tables key by key, anything else as a whole."""
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            merge(base[key], value)
        else:
            base[key] = _copy(value)


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def read(path: Path, chain: tuple[Path, ...] = ()) -> Source:
    """The values of `path` over those of the files that it extends. `chain` holds the files that led here."""
    text = read_text(path)
    try:
        own = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))  # else it is "at end of document"
        where = f"{path}:{line[1] if line else max(1, len(text.splitlines()))}"
        raise ConfigError([Problem("", f"not valid TOML: {error}.", origin=where)]) from None
    except ValueError:  # of int(), which says no line
        raise _unreadable(path, "not valid TOML: a number of thousands of digits.") from None
    except RecursionError:
        raise _unreadable(path, "not valid TOML: lists or tables nested hundreds deep.") from None
    lines = line_numbers(text)
    here = f"{path}:{lines.get('extends', 1)}"
    bases = own.pop("extends", [])
    if isinstance(bases, str):
        bases = [bases]
    if not isinstance(bases, list) or not all(isinstance(base, str) and "\0" not in base for base in bases):
        raise ConfigError([Problem("extends", "must be a file name or a list of file names.", origin=here)])
    chain = (*chain, path.resolve())
    source = Source()
    for base in bases:
        target = path.parent / base
        if target.resolve() in chain:
            circle = " -> ".join(str(file) for file in (*chain, target.resolve()))
            raise ConfigError([Problem("extends", f"a file cannot extend itself: {circle}.", origin=here)])
        try:
            source.update(read(target, chain))
        except ConfigError as error:
            raise ConfigError([_led_by(problem, here) for problem in error.problems]) from None
    origins = {key: f"{path}:{lines[key]}" if key in lines else str(path) for key in dotted_keys(own)}
    source.update(Source(own, origins))
    return source


def _led_by(problem: Problem, where: str) -> Problem:
    """The problem of a file that is not there names the line that asks for it."""
    return replace(problem, text=f"{problem.text} Extended by {where}.") if problem.key == "" else problem


def dotted_keys(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every key of nested tables, tables themselves included, as dotted names."""
    found = []
    for key, value in table.items():
        found.append(f"{prefix}{key}")
        if isinstance(value, Mapping):
            found += dotted_keys(value, f"{prefix}{key}.")
    return found


def read_text(path: Path) -> str:
    """A file as text. Raises ConfigError where it cannot be read, with the file that may be meant."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        near = closest(path.stem, [file.stem for file in path.parent.glob("*.toml")])  # the ending is alike in all
        hint = f" Did you mean {path.with_name(f'{near}.toml')}?" if near else ""
        raise _unreadable(path, f"no such file.{hint}") from None
    except IsADirectoryError:
        inside = sorted(path.glob("*.toml"))
        raise _unreadable(path, f"is a folder{f', give a file such as {inside[0]}' if inside else ''}.") from None
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"not UTF-8 text (byte {error.start}): TOML files are UTF-8.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _unreadable(path, f"cannot be read: {reason}.") from None


def _unreadable(path: Path, text: str) -> ConfigError:
    return ConfigError([Problem("", text, origin=str(path))])
