"""Values as TOML: for messages and for the resolved configuration that each run writes down.

The standard library reads TOML and does not write it. Only what the configuration holds is written: booleans, numbers,
strings, lists, tables; a float keeps its type and all its digits, so that reading the text gives the same value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BARE_KEY = re.compile(r"^[A-Za-z0-9_-]+$")


def key_text(name: str) -> str:
    """A key, in quotes where it needs them."""
    return name if _BARE_KEY.match(name) else _string(name)


def value_text(value: Any) -> str:
    """A value as TOML; what TOML has no word for (dates and the like, only ever in messages) as `str` gives it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key_text(str(key))} = {value_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(value_text(item) for item in value) + "]"
    if isinstance(value, int) and value.bit_length() > 256:  # str() refuses 4300 digits, nobody reads hundreds
        return f"{hex(value)[:16]}..."
    return "none" if value is None else str(value)


def _string(value: str) -> str:
    # JSON's escapes are TOML's too, but for the delete character and lone surrogates, which TOML cannot hold at all.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _float(value: float) -> str:
    if math.isinf(value) or math.isnan(value):
        return str(value)
    text = repr(value)
    return text if any(mark in text for mark in ".e") else f"{text}.0"
