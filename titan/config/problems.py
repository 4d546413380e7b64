"""Problems of a configuration and the one exception that carries them.

An error is for the person: where it stands, the key, its value, the rule, and what to write instead, a line each. All
problems of a configuration are collected before any is reported.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        key: dotted key, or "" where it is about a file or an argument.
        text: the rule and the remedy, as sentences.
        value: the value as TOML, where there is one to show.
        origin: `file:line` or "command line", where known.
    """

    key: str
    text: str
    value: str | None = None
    origin: str | None = None

    def __str__(self) -> str:
        named = self.key if self.value is None else f"{self.key} = {self.value}"
        return ": ".join(part for part in (self.origin, named, self.text) if part)


class ConfigError(ValueError):
    """A configuration that cannot be run; `str()` prints one problem a line."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def placed(problem: Problem, origins: Mapping[str, str]) -> Problem:
    """The problem with its place: where its key was set; for a default or a whole section, the keys that it names."""
    if problem.origin is not None or not problem.key:
        return problem
    if "." in problem.key and problem.key in origins:
        return replace(problem, origin=origins[problem.key])
    words = set(re.findall(r"\w+", problem.text))
    named = {origin: None for key, origin in origins.items() if key.rpartition(".")[2] in words}
    return replace(problem, origin=", ".join(named) or None)


def closest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that `name` is most likely meant to be, case and hyphens aside; None where nothing is near."""
    by_plain = {choice.lower().replace("-", "_").strip(): choice for choice in choices}
    found = difflib.get_close_matches(name.lower().replace("-", "_").strip(), by_plain, n=1, cutoff=0.6)
    return by_plain[found[0]] if found else None
