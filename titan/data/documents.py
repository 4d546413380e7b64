"""Documents on their way from a source to the tokenizer, and the one rule for text that is none.

A value that holds no text (missing, null, a number, a list, empty, only whitespace) or text that cannot be encoded
(invalid UTF-8, a lone surrogate) is skipped, and counted under its reason with the first place that it was met: one bad
row does not end the preparation of a terabyte, and is never trained on as "None". What breaks the file's own format
(not JSON, a cut gzip) is refused with file and line by the source that reads it. Nothing else of the text is touched:
NUL, CRLF and trailing whitespace are data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from titan.data.errors import DataError


@dataclass
class Tally:
    """What reading has met so far.

    Attributes:
        documents: documents handed on.
        done: how far reading is, in the source's unit.
        skipped: reason to (how often, where first).
    """

    documents: int = 0
    done: int = 0
    skipped: dict[str, tuple[int, str]] = field(default_factory=dict)

    def skip(self, reason: str, place: str) -> None:
        count, first = self.skipped.get(reason, (0, place))
        self.skipped[reason] = (count + 1, first)

    def usable(self, value: Any, place: str) -> str | None:
        """The value where it is text to train on; else None, and counted."""
        if not isinstance(value, str):
            self.skip("null" if value is None else f"{type(value).__name__}, not text", place)
            return None
        if not value or value.isspace():
            self.skip("empty", place)
            return None
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                self.skip("a lone surrogate", place)
                return None
        self.documents += 1
        return value

    def __str__(self) -> str:
        """The skipped ones as one line; empty where there are none."""
        reasons = [f"{count} {reason} (first: {place})" for reason, (count, place) in self.skipped.items()]
        return "; ".join(reasons)

    def refuse_if_empty(self, name: str) -> None:
        """Raises DataError where nothing was handed on."""
        if self.documents == 0:
            raise DataError(f"{name}: no text to train on; skipped: {self or 'nothing, as there is nothing in it'}.")


class Source(Protocol):
    """Where documents come from.

    Attributes:
        name: how messages call it.
        identity: JSON value; the same one means the same documents, so that they need not be read again.
    """

    name: str
    identity: list[Any]

    @property
    def total(self) -> int | None:
        """How much there is to read, in the unit of `Tally.done`; None where reading has to begin to know."""
        ...

    def documents(self, tally: Tally) -> Iterator[str]:
        """The documents in an order that does not change; keeps `tally` up to date. Raises DataError."""
        ...
