"""Every layout of a world, by predicted time: degrees and schedules that the rules allow, and why the others are not.

Degrees are the divisors of the world: tp within a node, cp up to 8 and only where rows are long, replicas whole nodes.
The global batch, the model and everything else stay as configured, but that a pipeline gets all rows of a rank at once.
Ranking takes one run of the blocks on fake tensors for each (tp, cp) and scales it to the rows at hand; the memory of
the fastest is then taken exactly, until `wanted` of them fit or `MOST` were asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from titan.config import Config, ConfigError, Degrees, Resolved, resolve
from titan.parallelisms.stages import SINGLE_STAGE
from titan.plan.build import least_bytes, peak, step_seconds
from titan.plan.cost import predict
from titan.plan.request import Request, Target, changed

SCHEDULES = ("1F1B", "Interleaved1F1B", "ZBVZeroBubble")
MOST = 40
LONG = 16_384
"""Tokens of a row from which on context parallelism is tried."""


@dataclass(frozen=True)
class Candidate:
    """A layout that the rules allow.

    Attributes:
        resolved: the run.
        schedule: its pipeline schedule, or "".
        seconds: of a step.
        tokens: a second and device.
        peak: bytes of the heaviest rank; None where it was not asked, the layout being slower than enough others.
        fits: whether the peak is within the device's memory; None as for `peak`.
    """

    resolved: Resolved
    schedule: str
    seconds: float
    tokens: float
    peak: int | None = None
    fits: bool | None = None


@dataclass
class Refusal:
    """Layouts that one rule refuses: how many, the first of them, and what was said of it."""

    layout: str
    text: str
    count: int = 0


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        ranked: allowed layouts; those known to fit first, then those not asked, then those that do not fit; each part
            by time.
        refused: what each rule refuses, by its key.
        too_large: how many do not fit by their parameters, gradients and optimizer state alone.
    """

    ranked: tuple[Candidate, ...]
    refused: dict[str, Refusal]
    too_large: int


def search(request: Request, target: Target, wanted: int = 10) -> Found:
    """Ranks the layouts of the request's world."""
    resolved = request.resolved
    refused: dict[str, Refusal] = {}
    candidates, too_large = [], 0
    for degrees, schedule in layouts(resolved, target):
        run = _resolved(resolved.config, degrees, schedule, target, refused)
        if run is None:
            continue
        if target.limit is not None and least_bytes(run) > target.limit:
            too_large += 1
            continue
        found = predict(run, target.device, target.per_node, extras=request.extras, quick=True)
        candidates.append(Candidate(run, schedule, found.seconds, found.tokens_per_second_per_device))
    candidates.sort(key=lambda candidate: candidate.seconds)
    return Found(tuple(_measured(candidates, request, target, wanted)), refused, too_large)


def layouts(resolved: Resolved, target: Target) -> Iterator[tuple[Degrees, str]]:
    """Degrees and schedules to try."""
    world, parallelism = resolved.degrees.world_size, resolved.config.parallelism
    layers = resolved.spec.n_layers(resolved.model_args)
    long = resolved.config.training.seq_len >= LONG or resolved.degrees.cp > 1
    schedules = dict.fromkeys((parallelism.pipeline_parallel_schedule, *SCHEDULES))
    for tp in _divisors(world, target.per_node):
        for cp in _divisors(world // tp, 8 if long else 1):
            for pp in _divisors(world // tp // cp, layers):
                rest = world // tp // cp // pp
                for shard in _divisors(rest, rest):
                    replicate = rest // shard
                    if replicate > 1 and shard * cp * tp % target.per_node:
                        continue  # replicas are worth their memory across nodes only
                    for schedule in schedules if pp > 1 else ("",):
                        yield Degrees(pp=pp, dp_replicate=replicate, dp_shard=shard, cp=cp, tp=tp), schedule


def _divisors(number: int, most: int) -> list[int]:
    return [divisor for divisor in range(1, min(number, most) + 1) if number % divisor == 0]


def _resolved(
    config: Config, degrees: Degrees, schedule: str, target: Target, refused: dict[str, Refusal]
) -> Resolved | None:
    changes: dict[str, Any] = {
        "parallelism.pipeline_parallel_degree": degrees.pp,
        "parallelism.data_parallel_replicate_degree": degrees.dp_replicate,
        "parallelism.data_parallel_shard_degree": degrees.dp_shard,
        "parallelism.context_parallel_degree": degrees.cp,
        "parallelism.tensor_parallel_degree": degrees.tp,
    }
    if schedule:
        if config.training.global_batch_size != -1:
            changes["training.local_batch_size"] = -1
        changes["parallelism.pipeline_parallel_schedule"] = schedule
        changes["parallelism.pipeline_parallel_schedule_csv"] = ""
        changes["parallelism.module_fqns_per_model_part"] = None
        if schedule in SINGLE_STAGE or schedule != config.parallelism.pipeline_parallel_schedule:
            changes["parallelism.pipeline_parallel_layers_per_stage"] = None
    try:
        return resolve(changed(config, changes), degrees.world_size, target.type)
    except ConfigError as error:
        for problem in {problem.key: problem for problem in error.problems}.values():
            layout = f"{degrees} {schedule}".strip()
            refused.setdefault(problem.key, Refusal(layout, problem.text)).count += 1
        return None


def _measured(candidates: list[Candidate], request: Request, target: Target, wanted: int) -> Iterator[Candidate]:
    fitting: list[Candidate] = []
    large: list[Candidate] = []
    rest: list[Candidate] = []
    asked = 0
    failed: dict[tuple[int, int, int, str], int] = {}
    for candidate in candidates:
        degrees = candidate.resolved.degrees
        kind = degrees.pp, degrees.cp, degrees.tp, candidate.schedule
        if failed.get(kind, degrees.dp_replicate + 1) <= degrees.dp_replicate:
            large.append(replace(candidate, fits=False))  # with as many replicas or fewer it does not fit already
            continue
        if len(fitting) >= wanted or asked >= MOST:
            rest.append(candidate)
            continue
        asked += 1
        try:
            size = peak(candidate.resolved, target)
        except ValueError:
            continue
        fits = target.limit is None or size <= target.limit
        if fits:
            seconds = step_seconds(candidate.resolved, target, request.extras)
            rate = candidate.tokens * candidate.seconds / seconds
            fitting.append(replace(candidate, seconds=seconds, tokens=rate, peak=size, fits=True))
        else:
            failed[kind] = degrees.dp_replicate
            large.append(replace(candidate, peak=size, fits=False))
    yield from sorted(fitting, key=lambda candidate: candidate.seconds)
    yield from rest
    yield from large
