"""Seconds of what a pipeline stage does with a microbatch, from its work and the device's peaks (see `cost`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from titan.config import Resolved
from titan.plan import activations, links
from titan.plan.activations_live import Call, Segment
from titan.plan.activations_setting import setting_of
from titan.plan.cost_terms import Constants, Extras, Terms
from titan.plan.devices import Device
from titan.plan.facts import Dimension, Operation
from titan.plan.links import Group
from titan.plan.parameters import Unit, itemsize, reshards, units
from titan.plan.work import Work

LATENCY = {True: 20e-6, False: 40e-6}
"""Seconds that a collective takes at least, inside a node and across: a usual size, not fitted."""
CASTS = 5
"""Bytes a value that float8 moves beside the product: read for the maximum, read and written for the cast."""
GATHER, REDUCE = "FSDP: gather parameters", "FSDP: reduce gradients"


@dataclass
class Stage:
    """Terms of a stage.

    Attributes:
        forward, backward: of each microbatch; the backward is whole.
        weights: the part of the backward that makes gradients of weights.
        first: what the first forward of a step takes beside that.
        last: what a backward takes beside that where gradients are reduced in it.
        tail: what follows the last backward of a step.
        numel: values of the stage's parameters that a rank keeps.
    """

    forward: Terms = field(default_factory=Terms)
    backward: Terms = field(default_factory=Terms)
    weights: Terms = field(default_factory=Terms)
    first: Terms = field(default_factory=Terms)
    last: Terms = field(default_factory=Terms)
    tail: Terms = field(default_factory=Terms)
    numel: int = 0


class StageCosts:
    """Makes stages of one run on one kind of device, `per_node` of them in a node.

    With `quick`, what one row takes is scaled to a microbatch, so that layouts that differ in rows share a trace.
    """

    def __init__(
        self,
        resolved: Resolved,
        device: Device,
        per_node: int,
        extras: Extras,
        constants: Constants,
        *,
        quick: bool = False,
    ) -> None:
        self.resolved, self.device, self.extras, self.constants = resolved, device, extras, constants
        self.degrees, config = resolved.degrees, resolved.config
        self.groups: Mapping[Dimension, Group] = links.groups(self.degrees, device, per_node)
        self.setting = setting_of(resolved, "cpu" if device.name == "cpu" else "cuda")
        traced = replace(self.setting, rows=1, piped=False) if quick else self.setting
        self.rows = self.setting.rows / traced.rows
        self.segments = activations.trace(traced).segments
        self.dtype = config.training.mixed_precision_param
        self.piped = self.degrees.pp > 1
        self.reshard = reshards(config.parallelism, self.degrees.pp)
        compiled = config.compile.components if config.compile.enable else []
        self.fused_blocks, self.fused_loss = "model" in compiled, "loss" in compiled

    def stage(self, modules: Sequence[str]) -> Stage:
        """The stage that holds these modules."""
        order, stage = self.resolved.spec.stages, Stage()
        own = units(self.resolved.spec, self.resolved.model_args, modules, tp=self.degrees.tp)
        pieces = [("first", name) for name in order.first if name in modules]
        blocks = [name for name in modules if name.startswith(f"{order.blocks}.")]
        pieces += [(self.setting.kind(int(name.rpartition(".")[2])), name) for name in blocks]
        pieces += [("last", name) for name in order.last[-1:] if name in modules]
        times = {name: self._compute(stage, piece) for piece, name in pieces}
        ahead = 0.0
        for unit in own:
            forward, backward = times.get(unit.name, (0.0, 0.0))
            self._shard(stage, unit, ahead, backward)
            ahead = forward
        return stage

    # -- one collective ------------------------------------------------------------------------------------------------

    def collective(self, dimension: Dimension, operation: Operation, size: float, ranks: int | None = None) -> float:
        """Seconds; `size` is that of the whole, `ranks` of the group where it is a part of the dimension."""
        group = self.groups.get(dimension)
        if group is None:
            return 0.0
        members = ranks or group.size
        share = 1.0 if operation == "send" else (members - 1) / members
        wire = size * share * (2.0 if operation == "all_reduce" else 1.0)
        return wire / (group.bandwidth * self.constants.links) + LATENCY[group.inside]

    def _calls(self, calls: Sequence[Call], dimension: Dimension) -> float:
        return sum(self.collective(dimension, operation, size) for name, operation, size in calls if name == dimension)

    # -- computation ---------------------------------------------------------------------------------------------------

    def _compute(self, stage: Stage, piece: str) -> tuple[float, float]:
        """Adds a piece of the model; its seconds forward and backward."""
        half = "backward+" if self.piped else "backward"  # a pipeline adds gradients up, FSDP makes them anew
        segments = [self.segments[f"{half} {piece}"]]
        if piece == "last":
            segments.append(self.segments[f"{half} loss"])
        forward, backward = self._terms([self.segments[f"forward {piece}"]], piece), self._terms(segments, piece)
        products = [each for segment in segments for each in segment.work.products]
        total = sum(each.flops for each in products)
        share = sum(each.flops for each in products if each.of_weight) / total if total else 0.0
        stage.forward.merge(forward)
        stage.backward.merge(backward)
        stage.weights.add("matrix products", backward.get("matrix products", 0.0) * share)
        return forward.total, backward.total

    def _terms(self, segments: Sequence[Segment], piece: str) -> Terms:
        work = sum((segment.work for segment in segments), Work())
        calls = [call for segment in segments for call in segment.calls]
        constants, bandwidth = self.constants, self.device.bandwidth
        block = piece.startswith("block")
        float8 = self.extras.float8 and (block or (piece == "last" and self.extras.float8_head))
        peak = self.device.flops["float8" if float8 else self.dtype] * constants.products
        terms = Terms()
        products = (
            max(each.flops * (1.0 + constants.narrow / each.narrowest) / peak, each.bytes / bandwidth)
            for each in work.products
        )
        terms.add("matrix products", sum(products))
        terms.add("attention", self._attention(work))
        fused = self.fused_blocks if block else self.fused_loss
        terms.add("memory-bound operators", (work.fused if fused else work.eager) / bandwidth)
        if float8:
            terms.add("float8 casts", sum(each.operands for each in work.products) * CASTS / bandwidth)
        terms.add("tensor parallel", self._tensor(calls, terms))
        terms.add("context parallel", self._context(calls, terms))
        return Terms({name: seconds * self.rows for name, seconds in terms.items()})

    def _attention(self, work: Work) -> float:
        # Without balancing the work was counted on cp rank 0, which has the fewest pairs; the last one has 2 cp - 1
        # times as many.
        cp, method = self.degrees.cp, self.setting.method
        uneven = cp > 1 and self.setting.balancer is None and method != "ulysses"
        return work.attention * (2 * cp - 1 if uneven else 1) / (self.device.flops[self.dtype] * self.device.attention)

    def _tensor(self, calls: Sequence[Call], terms: Terms) -> float:
        seconds, tp = self._calls(calls, "tp"), self.degrees.tp
        if not self.extras.async_tp or not seconds:
            return seconds
        # Cut into tp parts, each of which moves while another is multiplied: only the first one shows.
        hidden = min(seconds * (1 - 1 / tp), terms.get("matrix products", 0.0))
        return seconds - hidden

    def _context(self, calls: Sequence[Call], terms: Terms) -> float:
        seconds = self._calls(calls, "cp")
        ring = self.setting.method == "alltoall"  # it sends while it attends
        return max(0.0, seconds - terms.get("attention", 0.0)) if ring else seconds

    # -- sharded parameters --------------------------------------------------------------------------------------------

    def _shard(self, stage: Stage, unit: Unit, ahead: float, backward: float) -> None:
        """What shows of a unit's gathering and reduction.

        Its gathering hides behind `ahead`, the forward before it; its reduction, and a block's second gathering,
        behind as long a backward as its own. Copies into and out of the buffers hide behind nothing.
        """
        fsdp, block, bandwidth = self.degrees.fsdp, "." in unit.name, self.device.bandwidth
        numel = unit.shard_numel(fsdp) * fsdp
        stage.numel += unit.shard_numel(fsdp)
        width = 1 if self.extras.float8_gather and block else itemsize(self.dtype)
        gather = self.collective("fsdp", "all_gather", numel * width)
        sums = self.collective("fsdp", "reduce_scatter", numel * 4)
        sums += self.collective("dp_replicate", "all_reduce", numel * 4 / fsdp)
        copy_out = 2 * numel * width / bandwidth if fsdp > 1 else 0.0
        copy_in = numel * (itemsize(self.dtype) + 4) / bandwidth if fsdp > 1 else 0.0
        again = 0.0
        if self.reshard and block:
            ranks = None if self.reshard is True else int(self.reshard)
            again = self.collective("fsdp", "all_gather", numel * width, ranks)
        kept = self.piped and not self.reshard  # gathered once a step
        (stage.first if kept else stage.forward).add(GATHER, max(0.0, gather - ahead) + copy_out)
        if self.piped:  # reduced after the last microbatch
            if again:
                stage.backward.add(GATHER, max(0.0, again - backward) + copy_out)
            stage.tail.add(REDUCE, sums + copy_in)
            return
        hidden = backward if block else 0.0  # an end's reduction is the last of the step: nothing runs beside it
        if again:
            stage.backward.add(GATHER, max(0.0, again - hidden) + copy_out)
        stage.last.add(REDUCE, max(0.0, sums - max(0.0, hidden - again)) + copy_in)
