"""Predicted time of a step, from work, bytes and the device's peaks: each term visible, four constants in all.

A microbatch's forward or backward on a stage takes the sum of

    matrix products          each the longer of FLOPs x (1 + NARROW / smallest dimension) / (peak x PRODUCTS) and of
                             bytes / memory bandwidth
    attention                FLOPs / (peak x the fraction that the device's attention kernels reach)
    memory-bound operators   bytes of all others, each by itself or fused by the compiler / memory bandwidth
    tensor, context parallel collectives inside the model: computation waits for them

`schedule` runs these durations through the program of the pipeline, and what ranks wait for is the bubble. FSDP's
collectives run beside computation: gathering a block hides behind the block before it, reducing one behind a backward,
and only what is longer shows, with the first gathering and the last reduction, which have nothing to hide behind.
Collectives take wire bytes / (bandwidth x LINKS) and a latency. Then the optimizer's passes over the local shards, and
a loss for each doubling of the nodes. docs/plan.md compares it with published figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

from titan.config import Resolved
from titan.plan import links
from titan.plan.cost_stage import Stage, StageCosts
from titan.plan.cost_terms import FITTED, Constants, Extras, Terms
from titan.plan.devices import Device
from titan.plan.facts import Action
from titan.plan.memory_step import programs_of
from titan.plan.parameters import itemsize, stages_of
from titan.plan.schedule import Program, Timeline, simulate

PASSES = {"fused": 10, "foreach": 20, "for-loop": 20}
"""Times that the norm, the clipping and AdamW read or write a value of the local shard, in the master dtype."""


@dataclass(frozen=True)
class StepTime:
    """A predicted step.

    Attributes:
        terms: seconds by what they go to, on the pipeline rank that computes longest; their sum is the step.
        timeline: of one run of the schedule (all accumulation steps where there is no pipeline), without reductions,
            optimizer and the loss over nodes.
        programs: what the timeline ran.
        tokens: of a step over the whole job.
        model_flops: of a step over the whole job, recomputation not counted.
        peak: FLOP/s of all devices in the compute dtype.
        devices: how many.
    """

    terms: Terms
    timeline: Timeline
    programs: tuple[Program, ...]
    tokens: int
    model_flops: float
    peak: float
    devices: int

    @property
    def seconds(self) -> float:
        return self.terms.total

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def tokens_per_second_per_device(self) -> float:
        return self.tokens_per_second / self.devices

    @property
    def mfu(self) -> float:
        """Model FLOPs over the devices' peak."""
        return self.model_flops / self.seconds / self.peak


class _Durations:
    """Terms and seconds of each action of a step."""

    def __init__(self, stages: Sequence[Stage], last_microbatch: int, reduces_each: bool) -> None:
        self._stages, self._last, self._each = stages, last_microbatch, reduces_each
        self._known: dict[tuple[int, str, bool, bool], float] = {}

    def terms(self, action: Action) -> Terms:
        stage, terms = self._stages[action.stage], Terms()
        if action.kind == "F":
            terms.merge(stage.forward)
            if action.microbatch == 0:
                terms.merge(stage.first)
        elif action.kind == "W":
            terms.merge(stage.weights)
        else:
            terms.merge(stage.backward)
            if action.kind == "I":
                terms.merge(stage.weights, -1.0)
            if self._each or action.microbatch == self._last:
                terms.merge(stage.last)
        return terms

    def seconds(self, action: Action) -> float:
        key = (action.stage, action.kind, action.microbatch == 0, action.microbatch == self._last)
        if key not in self._known:
            self._known[key] = self.terms(action).total
        return self._known[key]


def predict(
    resolved: Resolved,
    device: Device,
    per_node: int,
    *,
    extras: Extras | None = None,
    constants: Constants = FITTED,
    quick: bool = False,
) -> StepTime:
    """The time of a step of this run on these devices, `per_node` of them in a node.

    With `quick`, to within some percent, the work of a microbatch is that of one row times its rows.
    """
    costs = StageCosts(resolved, device, per_node, extras or Extras(), constants, quick=quick)
    degrees, batch = resolved.degrees, resolved.batch
    stages = [costs.stage(modules) for modules in stages_of(resolved).modules]
    programs = programs_of(resolved)
    durations = _Durations(stages, batch.accumulation - 1, degrees.fsdp > 1 and costs.reshard is not False)
    hidden = _hidden_bytes(resolved) if degrees.pp > 1 else 0
    send = costs.collective("pp", "send", hidden)
    timeline = simulate(programs, durations.seconds, lambda _source, _target: send)

    tails = [stages[program[-1].stage].tail for program in programs]
    ends = [timeline.end(rank) + tail.total for rank, tail in enumerate(tails)]
    busiest = max(range(len(programs)), key=timeline.busy)
    terms = Terms()
    for action in programs[busiest]:
        terms.merge(durations.terms(action))
    terms.merge(tails[busiest])
    if degrees.pp > 1:
        terms.add("pipeline bubble", max(ends) - terms.total)
        terms = Terms({name: seconds * batch.accumulation for name, seconds in terms.items()})
    terms.add("optimizer", _optimizer(resolved, device, {action.stage for action in programs[busiest]}, stages))
    nodes = links.nodes(degrees, per_node)
    terms.add("waiting across nodes", terms.total * constants.doubling * log2(nodes))
    training = resolved.config.training
    tokens = batch.global_rows * training.seq_len
    return StepTime(
        terms=terms,
        timeline=timeline,
        programs=programs,
        tokens=tokens,
        model_flops=tokens * resolved.spec.flops_per_token(resolved.model_args, training.seq_len),
        peak=device.flops[training.mixed_precision_param] * degrees.world_size,
        devices=degrees.world_size,
    )


def _hidden_bytes(resolved: Resolved) -> int:
    """What goes from stage to stage."""
    args: Any = resolved.model_args
    training, degrees = resolved.config.training, resolved.degrees
    tokens = resolved.batch.microbatch_size * training.seq_len // degrees.cp // degrees.tp
    return int(tokens * args.dim * itemsize(training.mixed_precision_param))


def _optimizer(resolved: Resolved, device: Device, held: set[int], stages: Sequence[Stage]) -> float:
    config = resolved.config
    passes = PASSES[config.optimizer.implementation]
    size = sum(stages[stage].numel for stage in held) * itemsize(config.training.dtype)
    if config.training.enable_cpu_offload and device.name != "cpu":
        return size * (2 + passes) / device.host  # gradients go there, parameters come back; its memory does the rest
    return size * passes / device.bandwidth
