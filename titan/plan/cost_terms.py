"""What a predicted time is made of: terms in seconds under the words of the report, and the constants behind them."""

from __future__ import annotations

from dataclasses import dataclass


class Terms(dict[str, float]):
    """Seconds by what they go to."""

    def add(self, name: str, seconds: float) -> None:
        """Zero is not entered."""
        if seconds:
            self[name] = self.get(name, 0.0) + seconds

    def merge(self, other: Terms, times: float = 1.0) -> None:
        """Adds another's terms, `times` over; -1 takes them away."""
        for name, seconds in other.items():
            self.add(name, seconds * times)

    @property
    def total(self) -> float:
        return sum(self.values())


@dataclass(frozen=True)
class Constants:
    """What is not on a data sheet. scripts/fit_plan.py fits all but `links`, on compiled runs of the 8B model alone.

    Attributes:
        products: fraction of the peak that large matrix products reach.
        narrow: smallest dimension at which a product reaches half of that.
        doubling: part of a step that each doubling of the nodes adds: ranks that wait for each other.
        links: fraction of a link's bandwidth that collectives reach; not fitted, but what nccl-tests shows for large
            all-gathers on eight H100 (360 of 450 GB/s).
    """

    products: float = 0.527
    narrow: float = 394.0
    doubling: float = 0.0072
    links: float = 0.8


FITTED = Constants()


@dataclass(frozen=True)
class Extras:
    """What a plan can predict and `train` does not run: float8 products (tensorwise scales), async TP."""

    float8: bool = False
    float8_head: bool = False
    float8_gather: bool = False
    async_tp: bool = False
