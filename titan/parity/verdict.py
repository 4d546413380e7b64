"""From what the ranks found to a verdict: relative differences of a layout, their limits, what is beyond them.

A tensor's difference is ||a - b|| / ||b|| over the whole of it, from two sums a shard; element-wise ratios are noise,
since reordering rows alone moves single elements by 1e-2. The limit is 1e-5, or four times the noise floor (the oracle
against itself with its rows in another order) where that is more, as in bfloat16. The floor is taken where one run
tells it reliably: of a gradient, for each parameter; of the norm, by the difference of the whole gradient, which bounds
it; of weights, by how far an element of any parameter moved, since AdamW moves each by about the learning rate
whatever its gradient, and rounding turns the sign of those near zero. The floor comes from runs that are right, so a
wider limit hides no fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

TOLERANCE, TIMES_NOISE = 1e-5, 4.0
LOSS_EPSILONS = 1 / 64
"""A loss may be off by this part of the epsilon of the compute type: 1.2e-4 in bfloat16, under 1e-5 in float32."""
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
    """(loss, grad norm) of each step of the oracle; its second run, in another order, beside the first; the epsilon of
    the type of forward and backward."""

    scalars: list[tuple[float, float]]
    noise: Measured
    epsilon: float


@dataclass(frozen=True)
class Differences:
    """The largest relative differences of a run over all steps; infinite where a value is not finite.

    Attributes:
        initial: whether the initial weights have the oracle's bits.
        loss, grad_norm: relative.
        gradients, weights: relative, by parameter.
        whole_gradient: relative, of the gradient of all parameters as one.
        element: root mean square of the elements of each parameter's last weights.
    """

    initial: bool
    loss: float
    grad_norm: float
    gradients: dict[str, float]
    weights: dict[str, float]
    whole_gradient: float
    element: dict[str, float]

    def by_name(self, kind: str) -> dict[str, float]:
        """The differences of a kind by parameter; under "" where there is one."""
        found = getattr(self, kind)
        return found if isinstance(found, dict) else {"": found}


@dataclass(frozen=True)
class Finding:
    """The difference of one kind that is nearest to its limit, or furthest beyond it.

    Attributes:
        value, limit: relative.
        fqn: of the parameter; "" for loss and grad_norm.
    """

    kind: str
    value: float
    limit: float
    fqn: str

    @property
    def within(self) -> bool:
        return self.value <= self.limit


def judge(found: Differences, noise: Differences, epsilon: float) -> tuple[Finding, ...]:
    """One finding a kind. Each parameter has a limit of its own: where a gradient is rounding alone, its noise is as
    large as itself, and must not widen the limits of the others."""
    moved = max(noise.weights[fqn] * noise.element[fqn] for fqn in noise.weights)
    floors = {
        "loss": {"": max(noise.loss, epsilon * LOSS_EPSILONS / TIMES_NOISE)},
        "grad_norm": {"": max(noise.grad_norm, noise.whole_gradient)},
        "gradients": noise.gradients,
        "weights": {
            fqn: max(own, moved / noise.element[fqn] if noise.element[fqn] else 0.0)
            for fqn, own in noise.weights.items()
        },
    }
    return tuple(_nearest(kind, found, floors[kind]) for kind in KINDS)


def _nearest(kind: str, found: Differences, floor: Mapping[str, float]) -> Finding:
    findings = [
        Finding(kind, value, max(TOLERANCE, TIMES_NOISE * floor[fqn]), fqn)
        for fqn, value in found.by_name(kind).items()
    ]
    return max(findings, key=lambda one: math.inf if math.isinf(one.value) else one.value / one.limit)


def largest(noise: Differences) -> tuple[Finding, ...]:
    """Of a noise floor: its largest difference of each kind, which no limit judges."""
    worst = {kind: max(noise.by_name(kind).items(), key=lambda item: item[1]) for kind in KINDS}
    return tuple(Finding(kind, value, math.inf, fqn) for kind, (fqn, value) in worst.items())


def differences(run: OracleRun, ranks: Sequence[Measured]) -> Differences:
    """Joins the ranks of a layout. Raises ValueError where an element of some tensor is on no rank."""
    shapes = {one.fqn: one.shape for one in run.noise.initial}
    initial = _joined([rank.initial for rank in ranks], shapes, "the initial weights")
    loss = norm = whole = 0.0
    gradients = dict.fromkeys(shapes, 0.0)
    for step, (wanted_loss, wanted_norm) in enumerate(run.scalars):
        loss = max(loss, *(_relative(rank.scalars[step][0], wanted_loss) for rank in ranks))
        norm = max(norm, *(_relative(rank.scalars[step][1], wanted_norm) for rank in ranks))
        shards = _joined([rank.gradients[step] for rank in ranks], shapes, f"the gradients of step {step + 1}")
        gradients = {fqn: max(gradients[fqn], _ratio(shards[fqn])) for fqn in shapes}
        whole = max(whole, _ratio([one for some in shards.values() for one in some]))
    last = _joined([rank.last for rank in ranks], shapes, "the last weights")
    return Differences(
        initial=all(one.identical for shards in initial.values() for one in shards),
        loss=loss,
        grad_norm=norm,
        gradients=gradients,
        weights={fqn: _ratio(last[fqn]) for fqn in shapes},
        whole_gradient=whole,
        element={fqn: math.sqrt(sum(one.reference for one in last[fqn]) / math.prod(shapes[fqn])) for fqn in shapes},
    )


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


def _ratio(shards: Sequence[Compared]) -> float:
    """||a - b|| / ||b|| of one parameter."""
    difference, reference = sum(one.difference for one in shards), sum(one.reference for one in shards)
    if difference == 0.0:
        return 0.0
    ratio = difference / reference if reference else math.inf
    return math.sqrt(ratio) if math.isfinite(ratio) else math.inf


def _relative(found: float, wanted: float) -> float:
    if found == wanted:
        return 0.0
    ratio = abs(found / wanted - 1) if wanted else math.inf
    return ratio if math.isfinite(ratio) else math.inf
