"""From what the ranks found to a verdict: relative differences of a layout, their limits, what is beyond them.

A tensor's difference is ||a - b|| / ||b|| over the whole of it, from two sums a shard; element-wise ratios are noise,
since reordering rows alone moves single elements by 1e-2. The limit of each kind is 1e-5, or four times the noise floor
(the oracle against itself with its rows in another order) where that is more: in bfloat16, and for weights, which AdamW
with an eps of 1e-8 moves by a whole learning rate wherever a gradient is rounding alone. The floor comes from runs that
are right, so a wider limit hides no fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

TOLERANCE, TIMES_NOISE = 1e-5, 4.0
KINDS = ("loss", "grad_norm", "gradients", "weights")
Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Compared:
    """One shard beside the same box of the oracle's tensor.

    Attributes:
        fqn, shape: of the whole tensor.
        box: start and end of each dimension.
        difference, reference: sums of squares, of the difference and of the oracle's values; infinite where not finite.
        identical: whether all bits and the type agree.
    """

    fqn: str
    shape: tuple[int, ...]
    box: Box
    difference: float
    reference: float
    identical: bool


@dataclass(frozen=True)
class Measured:
    """What one rank found; `scalars` and `gradients` have an entry a step.

    Attributes:
        scalars: (loss, grad norm).
        initial, gradients, last: its shards beside the oracle's.
        tokens: consumed at the end.
    """

    scalars: list[tuple[float, float]]
    initial: list[Compared]
    gradients: list[list[Compared]]
    last: list[Compared]
    tokens: int


@dataclass(frozen=True)
class OracleRun:
    """(loss, grad norm) of each step of the oracle, and its second run, in another order, beside the first."""

    scalars: list[tuple[float, float]]
    noise: Measured


@dataclass(frozen=True)
class Differences:
    """The largest relative differences of a layout over all steps.

    Attributes:
        initial: whether the initial weights have the oracle's bits.
        loss, grad_norm, gradients, weights: relative; infinite where a value is not finite.
        worst_gradient, worst_weight: the parameters that gave the last two.
    """

    initial: bool
    loss: float
    grad_norm: float
    gradients: float
    weights: float
    worst_gradient: str
    worst_weight: str

    def beyond(self, limits: Mapping[str, float]) -> tuple[str, ...]:
        """Names of what is not within its limit, "initial" among them."""
        over = [kind for kind in KINDS if not getattr(self, kind) <= limits[kind]]
        return (*(() if self.initial else ("initial",)), *over)


def limits(noise: Differences) -> dict[str, float]:
    """By kind: 1e-5, or four times the noise floor."""
    return {kind: max(TOLERANCE, TIMES_NOISE * getattr(noise, kind)) for kind in KINDS}


def differences(run: OracleRun, ranks: Sequence[Measured]) -> Differences:
    """Joins the ranks of a layout. Raises ValueError where an element of some tensor is on no rank."""
    shapes = {one.fqn: one.shape for one in run.noise.initial}
    initial = _joined([rank.initial for rank in ranks], shapes, "the initial weights")
    last = _joined([rank.last for rank in ranks], shapes, "the last weights")
    loss = norm = gradient = 0.0
    worst = ""
    for step, (wanted_loss, wanted_norm) in enumerate(run.scalars):
        for rank in ranks:
            loss = max(loss, _relative(rank.scalars[step][0], wanted_loss))
            norm = max(norm, _relative(rank.scalars[step][1], wanted_norm))
        what = f"the gradients of step {step + 1}"
        name, found = _largest(_joined([rank.gradients[step] for rank in ranks], shapes, what))
        if found >= gradient:
            gradient, worst = found, name
    worst_weight, weights = _largest(last)
    same = all(one.identical for shards in initial.values() for one in shards)
    return Differences(same, loss, norm, gradient, weights, worst, worst_weight)


def noise_floor(run: OracleRun) -> Differences:
    """Of the oracle against itself."""
    return differences(run, [run.noise])


def _joined(
    ranks: Iterable[Sequence[Compared]], shapes: Mapping[str, tuple[int, ...]], what: str
) -> dict[str, list[Compared]]:
    """Shards by parameter, the worst of equal boxes; every element must be in one."""
    boxes: dict[str, dict[Box, Compared]] = {fqn: {} for fqn in shapes}
    for one in (one for rank in ranks for one in rank):
        held = boxes[one.fqn].get(one.box)
        if held is None or (one.difference, not one.identical) > (held.difference, not held.identical):
            boxes[one.fqn][one.box] = one
    for fqn, shape in shapes.items():
        covered = sum(math.prod(end - start for start, end in box) for box in boxes[fqn])
        if covered != math.prod(shape):
            raise ValueError(
                f"{fqn}: {covered:,} of {math.prod(shape):,} elements of {what} are on some rank; a layout must hold "
                "each once, or as equal replicas"
            )
    return {fqn: list(found.values()) for fqn, found in boxes.items()}


def _largest(joined: Mapping[str, Sequence[Compared]]) -> tuple[str, float]:
    found = {
        fqn: _ratio(sum(one.difference for one in shards), sum(one.reference for one in shards))
        for fqn, shards in joined.items()
    }
    worst = max(found, key=found.__getitem__)
    return worst, found[worst]


def _ratio(difference: float, reference: float) -> float:
    """sqrt(difference / reference) of sums of squares."""
    if difference == 0.0:
        return 0.0
    ratio = difference / reference if reference else math.inf
    return math.sqrt(ratio) if math.isfinite(ratio) else math.inf


def _relative(found: float, wanted: float) -> float:
    if found == wanted:
        return 0.0
    ratio = abs(found / wanted - 1) if wanted else math.inf
    return ratio if math.isfinite(ratio) else math.inf
