"""Puts a plan together: memory and traffic of each pipeline rank, the time of a step, who talks to whom.

Pure but for reading the tokenizer; needs no accelerator, and as much memory as its own process.
"""

from __future__ import annotations

from dataclasses import dataclass

from titan.config import ConfigError, Problem, Resolved
from titan.plan import links
from titan.plan.communication import traffic_of
from titan.plan.cost import StepTime, predict
from titan.plan.cost_terms import Extras
from titan.plan.facts import Dimension, Memory, Traffic
from titan.plan.links import Group
from titan.plan.memory import memory_of, play
from titan.plan.parameters import itemsize, stages_of, units
from titan.plan.request import Request, Target


@dataclass(frozen=True)
class Plan:
    """All that the report says of a run.

    Attributes:
        request: the run, with how it was read.
        target: the devices.
        memory: the peak of each pipeline rank.
        traffic: the collectives of each pipeline rank.
        time: of a step.
        groups: of the mesh, by dimension.
        remedy: the change that would make it fit, or None where it fits or nothing single does.
    """

    request: Request
    target: Target
    memory: tuple[Memory, ...]
    traffic: tuple[Traffic, ...]
    time: StepTime
    groups: dict[Dimension, Group]
    remedy: str | None = None

    @property
    def resolved(self) -> Resolved:
        return self.request.resolved

    @property
    def heaviest(self) -> Memory:
        """The rank with the highest peak."""
        return max(self.memory, key=lambda memory: memory.peak)

    @property
    def headroom(self) -> int | None:
        """Bytes that the heaviest rank leaves; negative where it does not fit, None where no limit is known."""
        return None if self.target.limit is None else self.target.limit - self.heaviest.peak

    @property
    def fits(self) -> bool:
        return self.headroom is None or self.headroom >= 0


def make(request: Request, target: Target) -> Plan:
    """The plan of a run, without a remedy. Raises ConfigError for what cannot run though no rule says so."""
    resolved = request.resolved
    try:
        steps = play(resolved, device_type=target.type)
    except ValueError as error:
        raise ConfigError([Problem("", str(error))]) from None
    return Plan(
        request=request,
        target=target,
        memory=tuple(map(memory_of, steps)),
        traffic=tuple(line for step in steps for line in traffic_of(step)),
        time=predict(resolved, target.device, target.per_node, extras=request.extras),
        groups=links.groups(resolved.degrees, target.device, target.per_node),
    )


def peak(resolved: Resolved, target: Target) -> int:
    """Bytes of the heavier of the first and the last pipeline rank. Raises ValueError for what cannot run."""
    return max(memory_of(step).peak for step in play(resolved, device_type=target.type, ends_only=True))


def least_bytes(resolved: Resolved) -> int:
    """Parameters, gradients and the optimizer's two moments of the heaviest rank: less than any peak."""
    degrees, plan = resolved.degrees, stages_of(resolved)
    each = itemsize(resolved.config.training.dtype) * 4
    held = [0] * degrees.pp
    for rank, modules in zip(plan.ranks, plan.modules, strict=True):
        own = units(resolved.spec, resolved.model_args, modules, tp=degrees.tp)
        held[rank] += sum(unit.shard_numel(degrees.fsdp) for unit in own) * each
    return max(held)


def step_seconds(resolved: Resolved, target: Target, extras: Extras) -> float:
    """The time of a step alone."""
    return predict(resolved, target.device, target.per_node, extras=extras).seconds
