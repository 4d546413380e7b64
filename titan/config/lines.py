"""Which line of a TOML text sets which key, for messages; tomllib, which reads the values, does not say.

A scanner of what can stand around keys: comments, strings of all four kinds, arrays over several lines, inline tables.
It reads text that tomllib has accepted, so it checks nothing.
"""

from __future__ import annotations

import re
from enum import Enum

_TOKEN = re.compile(
    r"""(?P<skip>\#[^\n]*|[ \t\r]+)
    |(?P<newline>\n)
    |(?P<string>\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')
    |(?P<mark>[\[\]{}=,.])
    |(?P<word>[^\s\[\]{}=,.\#"']+)""",
    re.VERBOSE | re.DOTALL,
)


class _At(Enum):
    KEY = "key"
    HEADER = "header"
    VALUE = "value"


def line_numbers(text: str) -> dict[str, int]:
    """Line, from 1, of each header and key, by dotted name; of several (arrays of tables) the first."""
    lines: dict[str, int] = {}
    number, at = 1, _At.KEY
    section: list[str] = []
    parts: list[str] = []  # of the key that is being read
    path: list[str] = []  # of the key whose value is being read
    open_: list[list[str] | None] = []  # within a value: the path of an inline table, None for an array

    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup, match[0]
        if kind == "newline":
            number += 1
            if not open_:
                at, parts = _At.KEY, []
        elif kind in ("string", "word") and at is not _At.VALUE:
            parts.append(_name(token))
        elif kind == "mark" and at is _At.VALUE:
            if token in "[{":
                open_.append(path if token == "{" else None)
            elif token in "]}" and open_:
                open_.pop()
            inside = open_[-1] if open_ else None
            if inside is not None and token in "{,":
                at, parts = _At.KEY, []
        elif kind == "mark":
            if token == "[" and not parts:
                at = _At.HEADER
            elif token == "]":
                section, at = parts, _At.VALUE
                lines.setdefault(".".join(section), number)
            elif token == "}":  # of an inline table with nothing, or nothing more, in it
                open_.pop()
                at = _At.VALUE
            elif token == "=":
                table = open_[-1] if open_ else section
                path, at = [*(table or []), *parts], _At.VALUE
                lines.setdefault(".".join(path), number)
        number += token.count("\n") if kind == "string" else 0
    return lines


def _name(token: str) -> str:
    return token.strip("\"'") if token[0] in "\"'" else token
