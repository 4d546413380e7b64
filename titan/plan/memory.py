"""Memory of a step: every pipeline rank's program, played through with the pieces of `activations` and the unit lives
of `memory_units`, in the steady state (from the second step on, when the optimizer's moments are there).

Bytes are those of live tensors. A device holds more: its context (about 0.5 to 1 GiB on CUDA), the backend's own
buffers, and what its allocator cannot reuse. Ranks of the other dimensions hold the same, or less where a dimension
does not divide: the plan speaks of the first, whose shards are the largest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from titan.config import Resolved
from titan.parallelisms.stages import SINGLE_STAGE
from titan.plan.activations import GRADIENTS as TRACED_GRADIENTS
from titan.plan.activations import UPSTREAM, Setting, Trace, setting_of, split_backward, trace
from titan.plan.activations_live import Segment
from titan.plan.facts import Action, Memory
from titan.plan.memory_units import (
    BUFFERS,
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    UNSHARDED,
    UNSHARDED_GRADIENTS,
    Gathered,
    Ledger,
    Sizes,
)
from titan.plan.parameters import Unit, itemsize, reshards, stages_of, units
from titan.plan.schedule import Program, csv_programs, pipeline_programs, single_program

LOGITS = "logits and loss"


def memory(resolved: Resolved, *, device_type: str = "cuda") -> list[Memory]:
    """The peak of each pipeline rank. Raises ValueError for a schedule that the stages cannot take."""
    return [_Rank(resolved, rank, program, device_type).play() for rank, program in enumerate(programs_of(resolved))]


def programs_of(resolved: Resolved) -> tuple[Program, ...]:
    """What each pipeline rank computes in one step of the schedule; without a pipeline, in the whole step."""
    parallelism, batch, pp = resolved.config.parallelism, resolved.batch, resolved.degrees.pp
    if pp == 1:
        return single_program(batch.accumulation)
    if parallelism.pipeline_parallel_schedule_csv:
        return csv_programs(Path(parallelism.pipeline_parallel_schedule_csv))
    n_stages = len(stages_of(resolved).ranks)
    return pipeline_programs(parallelism.pipeline_parallel_schedule, pp, n_stages, batch.microbatches)


def sizes_of(resolved: Resolved) -> Sizes:
    """Bytes a value and ranks that shard."""
    training, degrees = resolved.config.training, resolved.degrees
    policy = reshards(resolved.config.parallelism, degrees.pp)
    return Sizes(
        ranks=0 if degrees.world_size == 1 else degrees.fsdp,
        kept=1 if policy is False else 0 if policy is True else degrees.fsdp // policy,
        compute=itemsize(training.mixed_precision_param),
        reduce=itemsize(training.mixed_precision_reduce),
        master=itemsize(training.dtype),
    )


class _Stage:
    """One stage of a rank: its units in the order of the forward, and the kinds of its blocks."""

    def __init__(self, number: int, found: Sequence[Unit], setting: Setting, sizes: Sizes, ledger: Ledger) -> None:
        self.number = number
        ends = ("first", "last", "root")
        self.units = {
            unit.name: Gathered(unit, sizes, ledger, resharded=unit.name not in ends and sizes.kept != 1)
            for unit in found
        }
        self.blocks = [
            (setting.kind(int(unit.name.rpartition(".")[2])), self.units[unit.name])
            for unit in found
            if unit.name not in ends
        ]
        root = self.units.get("root")
        self.first, self.last = self.units.get("first", root), self.units.get("last", root)
        self.kept_buffer = 0  # of the last all-gather of the forward


class _Rank:
    """One pipeline rank's step."""

    def __init__(self, resolved: Resolved, rank: int, program: Program, device_type: str) -> None:
        self.resolved, self.rank, self.program = resolved, rank, program
        self.setting = setting_of(resolved)
        self.sizes, self.ledger = sizes_of(resolved), Ledger()
        self.trace: Trace = trace(self.setting)
        self.split: Trace | None = trace(self.setting, split=True) if split_backward(resolved) else None
        self.offload = resolved.config.training.enable_cpu_offload and device_type != "cpu"
        plan = stages_of(resolved)
        self.holders, self.piped = plan.ranks, resolved.degrees.pp > 1
        spec, args = resolved.spec, resolved.model_args
        self.stages = {
            number: _Stage(
                number,
                units(spec, args, plan.modules[number], tp=resolved.degrees.tp),
                self.setting,
                self.sizes,
                self.ledger,
            )
            for number in plan.of(rank)
        }
        self.lone = (
            self.piped
            and not resolved.config.parallelism.pipeline_parallel_schedule_csv
            and (resolved.config.parallelism.pipeline_parallel_schedule in SINGLE_STAGE)
        )
        self.flow: dict[tuple[int, int], Counter[str]] = {}
        self.sent = self.logits_held = 0
        self.detail: dict[str, int] = {}

    # -- a step -------------------------------------------------------------------------------------------------------

    def play(self) -> Memory:
        self._persistent()
        if self.piped:
            for _ in range(self.resolved.batch.accumulation):
                self._pipeline_step()
        else:
            self._plain_step()
        self._optimizer()
        peak: Counter[str] = Counter()
        for category, size in self.ledger.peak.items():
            peak[self._word(category)] += size
        items = {word: size for word, size in sorted(peak.items(), key=lambda item: -item[1]) if size > 0}
        return Memory(self.rank, tuple(self.stages), items, self.ledger.where, self._details())

    def _persistent(self) -> None:
        ledger, shards = self.ledger, sum(unit.shard_bytes for unit in self._all_units())
        config, hidden = self.resolved.config, self.trace.hidden
        tensors = sum(len(unit.unit.shapes) for unit in self._all_units())
        if not self.offload:
            ledger.add(PARAMETERS, shards)
            ledger.add(OPTIMIZER, 2 * shards + 4 * tensors)
        if self.sizes.ranks == 0 and self.sizes.compute != self.sizes.master:
            ledger.add(UNSHARDED, sum(unit.gathered_bytes for unit in self._all_units()))
        if self.piped:
            last = len(self.holders) - 1
            links = sum((number > 0) + (number < last) for number in self.stages)
            ledger.add(BUFFERS, links * self.resolved.batch.microbatches * hidden)
        rows = self.resolved.batch.rows
        ledger.add("inputs", 2 * rows * config.training.seq_len // self.resolved.degrees.cp * 8)

    def _all_units(self) -> list[Gathered]:
        return [unit for stage in self.stages.values() for unit in stage.units.values()]

    def _plain_step(self) -> None:
        (stage,) = self.stages.values()
        accumulation = self.resolved.batch.accumulation
        each = self.sizes.ranks > 1 and self.sizes.kept != 1  # whole gradients would not fit: reduce every time
        for action in self.program:
            if action.kind == "F":
                self._forward(stage, action)
            else:
                last = action.microbatch == accumulation - 1
                self._backward(stage, action, sync=self.sizes.ranks > 0 and (each or last))

    def _pipeline_step(self) -> None:
        self.sent = self.logits_held = 0
        done: Counter[int] = Counter()
        if not self.lone:
            for stage in self.stages.values():
                self._gather_stage(stage)
        for action in self.program:
            stage = self.stages[action.stage]
            match action.kind:
                case "F":
                    self._forward(stage, action)
                case "B":
                    self._backward(stage, action, sync=False)
                case "I":
                    self._input_backward(stage, action)
                case "W":
                    self._weight_backward(stage, action)
            done[action.stage] += action.kind in ("B", "W")
            if not self.lone and action.kind in ("B", "W") and done[action.stage] == self.resolved.batch.microbatches:
                self._reduce_stage(stage)
        for stage in self.stages.values() if self.lone else ():
            self._reduce_stage(stage)
        self.ledger.add(BUFFERS, -self.sent)
        self.ledger.add(LOGITS, -self.logits_held)

    def _gather_stage(self, stage: _Stage) -> None:
        """The UNSHARD action: all units at once, each buffer freed as its parameters are made."""
        for unit in stage.units.values():
            unit.ask()
        for unit in stage.units.values():
            self.ledger.add(BUFFERS, -unit.wait())

    def _reduce_stage(self, stage: _Stage) -> None:
        before = 0
        for name, unit in stage.units.items():
            unit.free()
            before = unit.reduce(before, self._reduction_peak(stage, name))
        self.ledger.add(BUFFERS, -before)
        for unit in stage.units.values():
            unit.finish()

    # -- forward ------------------------------------------------------------------------------------------------------

    def _forward(self, stage: _Stage, action: Action) -> None:
        where = f"forward of microbatch {action.microbatch}" + (f" in stage {stage.number}" if self.piped else "")
        flow = self.flow[(stage.number, action.microbatch)] = Counter()
        self._enter(stage, stage.first)
        if stage.number == 0:
            self._segment("forward first", flow, where + ", first modules")
        else:
            self._add(flow, Counter(other=self.trace.segments["forward first"].added["other"]))
        for index, (kind, unit) in enumerate(stage.blocks):
            self._enter(stage, unit)
            if index + 1 < len(stage.blocks):
                stage.blocks[index + 1][1].ask()
            self._segment(f"forward {kind}", flow, f"{where}, {unit.unit.name}")
            unit.after_forward()
        if stage.number == len(self.holders) - 1:
            self._enter(stage, stage.last)
            self._segment("forward last", flow, where + ", head and loss")
            self.ledger.add(LOGITS, -self.logits_held)
            self.logits_held = 0
        self.ledger.add(BUFFERS, -stage.kept_buffer)
        stage.kept_buffer = 0
        if self._same_rank(stage.number, stage.number + 1):  # it takes the place of what the step before left there
            self._add(flow, Counter(residual=-self.trace.hidden))

    def _enter(self, stage: _Stage, unit: Gathered | None) -> None:
        if unit is None or unit.whole or self.sizes.ranks == 0:
            return
        unit.ask()
        if self.sizes.ranks > 1:
            self.ledger.add(BUFFERS, -stage.kept_buffer)
            stage.kept_buffer = 0
        stage.kept_buffer = unit.wait()

    def _segment(self, name: str, flow: Counter[str], where: str, trace: Trace | None = None) -> int:
        """Plays a piece; returns the gradients that it made."""
        segment = (trace or self.trace).segments[name]
        self.ledger.note(where, segment.peak)
        added = Counter(segment.added)
        made = added.pop(TRACED_GRADIENTS, 0)
        self._add(flow, added)
        return made

    def _add(self, flow: Counter[str], added: Counter[str]) -> None:
        self.ledger.now.update(added)
        flow.update(added)

    # -- backward -----------------------------------------------------------------------------------------------------

    def _backward(self, stage: _Stage, action: Action, *, sync: bool) -> None:
        where = f"backward of microbatch {action.microbatch}" + (f" in stage {stage.number}" if self.piped else "")
        flow = self.flow.pop((stage.number, action.microbatch))
        state = _Reducing()
        if stage.number == len(self.holders) - 1:
            self._segment("backward loss", flow, where + ", loss")
            self._last(stage, where, flow, sync, state, self.trace, "backward")
        self._blocks(stage, where, flow, sync, state, self.trace, "backward")
        if stage.number == 0:
            if stage.first is not None:
                self._grads(stage.first, "first", "backward", flow, f"{where}, first modules")
            for unit in {id(unit): unit for unit in (stage.first, stage.last) if unit is not None}.values():
                if unit is stage.first:
                    self._close(stage, unit, "first", sync, state)
        if sync:
            self.ledger.add(BUFFERS, -state.buffer)
            for unit in stage.units.values():
                unit.finish()
        self._leave(stage, action, flow)

    def _last(
        self, stage: _Stage, where: str, flow: Counter[str], sync: bool, state: _Reducing, trace: Trace, half: str
    ) -> None:
        last = stage.last
        assert last is not None
        if stage.blocks:
            stage.blocks[-1][1].ask()
        self._grads(last, "last", half, flow, where + ", head", trace)
        if last is not stage.first:
            self._close(stage, last, "last", sync, state)

    def _blocks(
        self, stage: _Stage, where: str, flow: Counter[str], sync: bool, state: _Reducing, trace: Trace, half: str
    ) -> None:
        for index in range(len(stage.blocks) - 1, -1, -1):
            kind, unit = stage.blocks[index]
            self.ledger.add(BUFFERS, -unit.wait())
            if index > 0:
                stage.blocks[index - 1][1].ask()
            self._grads(unit, kind, half, flow, f"{where}, {unit.unit.name}", trace)
            if index == len(stage.blocks) - 1 and stage.number < len(self.holders) - 1:
                self._add(flow, Counter({UPSTREAM: self.trace.hidden}))  # what came in is a buffer that stays
            self._close(stage, unit, kind, sync, state)

    def _grads(
        self, unit: Gathered, piece: str, half: str, flow: Counter[str], where: str, trace: Trace | None = None
    ) -> None:
        made = self._segment(f"{half}{'+' if unit.adds else ''} {piece}", flow, where, trace)
        self.ledger.add(UNSHARDED_GRADIENTS, made)
        unit.fresh += made

    def _close(self, stage: _Stage, unit: Gathered, piece: str, sync: bool, state: _Reducing) -> None:
        """A unit's backward is over: reduce, or keep."""
        if self.sizes.ranks == 0:
            return
        if not self.piped:
            unit.free()
        if sync:
            state.buffer = unit.reduce(state.buffer, self._reduction_peak(stage, piece))
        else:
            unit.keep_gradients()

    def _reduction_peak(self, stage: _Stage, piece: str) -> int:
        """Temporary bytes of resolving pending sums over tp before the reduction."""
        kinds = {unit.unit.name: kind for kind, unit in stage.blocks}
        found = self.trace.segments.get(f"reduce {kinds.get(piece, piece)}", Segment())
        return found.peak.total()

    def _input_backward(self, stage: _Stage, action: Action) -> None:
        if stage.number == 0:
            return  # torch leaves it all to the weight half
        assert self.split is not None
        where = f"input backward of microbatch {action.microbatch} in stage {stage.number}"
        flow, state = self.flow[(stage.number, action.microbatch)], _Reducing()
        if stage.number == len(self.holders) - 1:
            self._segment("input loss", flow, where + ", loss", self.split)
            self._segment("input last", flow, where + ", head", self.split)
        for index in range(len(stage.blocks) - 1, -1, -1):
            kind, unit = stage.blocks[index]
            unit.keep_gradients()
            self._segment(f"input {kind}", flow, f"{where}, {unit.unit.name}", self.split)
        self._send(stage.number, stage.number - 1)
        del state

    def _weight_backward(self, stage: _Stage, action: Action) -> None:
        if stage.number == 0:
            self._backward(stage, action, sync=False)
            return
        assert self.split is not None
        where = f"weight backward of microbatch {action.microbatch} in stage {stage.number}"
        flow = self.flow.pop((stage.number, action.microbatch))
        peak = self.split.segments["weight+"].peak
        if self.setting.mode != "none":  # every block is computed again, and held
            share = len(stage.blocks) / self.split.blocks
            peak = Counter({category: round(size * share) for category, size in peak.items()})
        self.ledger.note(where, peak)
        for unit in stage.units.values():
            made = unit.unit.numel * self.sizes.compute
            if not unit.fresh:
                self.ledger.add(UNSHARDED_GRADIENTS, made)
                unit.fresh = made
        self._leave(stage, action, flow)
        self.ledger.note(where)

    def _leave(self, stage: _Stage, action: Action, flow: Counter[str]) -> None:
        """The end of a microbatch in a stage: what is left of it is what was sent, which lives until the step ends."""
        self.ledger.now.subtract(flow)
        number = stage.number
        if not self.piped:
            return
        if number < len(self.holders) - 1:
            self._send(number, number + 1)
        elif self.lone:
            self.logits_held = self.trace.logits
            self.ledger.add(LOGITS, self.logits_held)
        if number > 0 and action.kind == "B":
            self._send(number, number - 1)

    def _send(self, source: int, target: int) -> None:
        if self._same_rank(source, target) or self.lone:
            return
        self.sent += self.trace.hidden
        self.ledger.add(BUFFERS, self.trace.hidden)

    def _same_rank(self, source: int, target: int) -> bool:
        return 0 <= target < len(self.holders) and self.holders[source] == self.holders[target]

    # -- the optimizer, and words -------------------------------------------------------------------------------------

    def _optimizer(self) -> None:
        section = self.resolved.config.optimizer
        shards = sum(unit.shard_bytes for unit in self._all_units())
        largest = max(
            (size for unit in self._all_units() for size in unit.tensor_bytes()),
            default=0,
        )
        more = {"foreach": shards, "for-loop": 2 * largest, "fused": 0}[section.implementation]
        if not self.offload:
            self.ledger.note("optimizer step", {"temporaries of the optimizer": more} if more else None)

    def _word(self, category: str) -> str:
        spec = self.resolved.spec
        head = category.partition(".")[0]
        if category == UNSHARDED_GRADIENTS and self.sizes.ranks == 0:
            return GRADIENTS
        if head in (*spec.stages.first,):
            return "activations.embedding"
        if category == "loss" or (head in spec.stages.last and "norm" not in head):
            return LOGITS
        if "norm" in head:
            return "activations.norm"
        if category == UPSTREAM:
            return "activations.gradients"
        known = (PARAMETERS, OPTIMIZER, GRADIENTS, UNSHARDED, UNSHARDED_GRADIENTS, BUFFERS, LOGITS, "inputs")
        if category in known or category.startswith("temporaries"):
            return category
        return f"activations.{head}"

    def _details(self) -> dict[str, int]:
        """Bytes that one microbatch leaves in each kind of block, by module."""
        kinds = sorted({kind for stage in self.stages.values() for kind, _unit in stage.blocks})
        return {
            f"{kind}, {category}": size
            for kind in kinds
            for category, size in self.trace.segments[f"forward {kind}"].added.items()
            if size > 0
        }


class _Reducing:
    """The reduction's buffer that is alive between units."""

    buffer = 0
