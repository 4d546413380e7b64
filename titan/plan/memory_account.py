"""The accounts of a step: live bytes with their highest point, and collectives by dimension and operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from titan.plan.facts import Dimension, Operation

PARAMETERS, OPTIMIZER, GRADIENTS = "parameters", "optimizer state", "gradients"
UNSHARDED, UNSHARDED_GRADIENTS, BUFFERS = "unsharded parameters", "unsharded gradients", "communication buffers"
LOGITS = "logits and loss"


class Ledger:
    """Live bytes by category, and their highest point."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.where = ""
        self._highest = 0

    def add(self, category: str, size: int) -> None:
        """Bytes that come, or go where negative."""
        self.now[category] += size

    def note(self, where: str, more: Mapping[str, int] | None = None) -> None:
        """Looks whether this moment, with `more` for an instant, is the highest so far."""
        total = self.now.total() + (sum(more.values()) if more else 0)
        if total > self._highest:
            self._highest, self.where, self.peak = total, where, Counter(self.now)
            self.peak.update(more or {})


@dataclass(frozen=True)
class Line:
    """Collectives of one kind."""

    dimension: Dimension
    operation: Operation
    purpose: str
    group_size: int


@dataclass
class Tally:
    """Calls and bytes of the whole, by kind. Collectives over one rank move nothing and are left out."""

    calls: Counter[Line] = field(default_factory=Counter)
    bytes: Counter[Line] = field(default_factory=Counter)

    def add(self, line: Line, size: int, calls: int = 1) -> None:
        """Adds `calls` collectives of `size` bytes each."""
        if line.group_size > 1 and calls:
            self.calls[line] += calls
            self.bytes[line] += calls * size
