"""Lengths of time as people write them: `"2h30m"`, `"90s"`, `"1d"`, or a number of seconds."""

from __future__ import annotations

import re
from typing import Any

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_PATTERN = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def seconds(value: Any) -> Any:
    """Whole seconds of a duration in words; anything else comes back as it is, for the field's own rule to judge.

    `"2h30m"` is 9000. The units are d, h, m and s, in this order, each at most once. Raises ValueError for other text.
    """
    if not isinstance(value, str):
        return value
    found = _PATTERN.fullmatch(value.strip())
    if found is None or not any(found.groups()):
        raise ValueError("not a duration")
    return sum(int(number) * size for number, size in zip(found.groups(), _UNITS.values(), strict=True) if number)
