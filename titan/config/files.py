"""Reads a TOML file and the files that it extends into one nested table, and remembers where each value came from.

`extends = "base.toml"` (or a list, later ones win) is relative to the file that says so; tables merge key by key,
everything else replaces. Whatever is wrong with a file (missing, a folder, unreadable, not UTF-8, invalid TOML, extends
itself) is one ConfigError.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from titan.config.problems import ConfigError, Problem, closest

_HEADER = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]")
_KEY = re.compile(r"^\s*([A-Za-z0-9_\"'.\s-]+?)\s*=")


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
    text = _text(path)
    try:
        own = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        where = f"{path}:{line[1]}" if line else str(path)
        raise ConfigError([Problem("", f"not valid TOML: {error}.", origin=where)]) from None
    bases = own.pop("extends", [])
    if isinstance(bases, str):
        bases = [bases]
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError([Problem("extends", "must be a file name or a list of file names.", origin=str(path))])
    chain = (*chain, path.resolve())
    source = Source()
    for base in bases:
        target = path.parent / base
        if target.resolve() in chain:
            circle = " -> ".join(str(file) for file in (*chain, target.resolve()))
            raise ConfigError([Problem("extends", f"a file cannot extend itself: {circle}.", origin=str(path))])
        source.update(read(target, chain))
    lines = line_numbers(text)
    origins = {key: f"{path}:{lines[key]}" if key in lines else str(path) for key in dotted_keys(own)}
    source.update(Source(own, origins))
    return source


def dotted_keys(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every key of nested tables, tables themselves included, as dotted names."""
    found = []
    for key, value in table.items():
        found.append(f"{prefix}{key}")
        if isinstance(value, Mapping):
            found += dotted_keys(value, f"{prefix}{key}.")
    return found


def line_numbers(text: str) -> dict[str, int]:
    """Line of each header and key as written, by dotted name; good for messages, not a parser (tomllib is)."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            section = _plain(header[1])
            lines.setdefault(section, number)
        elif key := _KEY.match(line):
            name = _plain(key[1])
            lines.setdefault(f"{section}.{name}" if section else name, number)
    return lines


def _plain(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        near = closest(path.name, [file.name for file in path.parent.glob("*.toml")])
        hint = f" Did you mean {path.with_name(near)}?" if near else ""
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
