"""One stage of a rank, forward and backward of one microbatch: the pieces of `activations` in the order of the modules,
with FSDP's gathering and reducing around them.

What a microbatch leaves in a stage is kept by its number until its backward; what is over then is taken away, so that
the small differences between pieces at an end and in the middle do not add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from titan.plan.activations import GRADIENTS as MADE
from titan.plan.activations import UPSTREAM, Trace
from titan.plan.activations_live import Call, Segment
from titan.plan.activations_setting import Setting
from titan.plan.facts import Operation
from titan.plan.memory_account import BUFFERS, LOGITS, UNSHARDED_GRADIENTS, Ledger, Line, Tally
from titan.plan.memory_units import Gathered, Sizes
from titan.plan.parameters import Unit

ENDS = ("first", "last", "root")
_PURPOSE: dict[tuple[str, Operation], str] = {
    ("tp", "all_reduce"): "statistics of the loss",
    ("cp", "all_gather"): "keys and values",
    ("cp", "reduce_scatter"): "gradients of keys and values",
    ("cp", "send"): "keys and values, and their gradients",
    ("cp", "all_to_all"): "heads for sequence",
}


class StageRun:
    """A stage in the course of a step.

    Args:
        found: its units in the order of the forward.
        split: the trace of a split backward, where there is one; else the weight half does it all, as what is
            compiled does.
        single: whether the schedule has one stage a rank, which keeps the last logits a while longer.
    """

    def __init__(
        self,
        number: int,
        n_stages: int,
        found: Sequence[Unit],
        *,
        setting: Setting,
        sizes: Sizes,
        trace: Trace,
        split: Trace | None,
        single: bool,
        ledger: Ledger,
        tally: Tally,
    ) -> None:
        self.number, self.is_first, self.is_last = number, number == 0, number == n_stages - 1
        self.piped, self.single = n_stages > 1, single
        self._setting, self._sizes, self._trace, self._split = setting, sizes, trace, split
        self._ledger, self._tally = ledger, tally
        self.units = [
            Gathered(unit, sizes, ledger, tally, resharded=unit.name not in ENDS and sizes.kept > 0) for unit in found
        ]
        by_name = {unit.unit.name: unit for unit in self.units}
        self._blocks = [
            (setting.kind(int(name.rpartition(".")[2])), unit) for name, unit in by_name.items() if name not in ENDS
        ]
        root = by_name.get("root")
        self._first, self._last = by_name.get("first", root), by_name.get("last", root)
        self._left: dict[int, Counter[str]] = {}  # what each microbatch has left here
        self._gather_buffer = self._reduce_buffer = self._old_logits = 0
        self._latest = -1

    @property
    def kinds(self) -> list[str]:
        """The kind of each block."""
        return [kind for kind, _unit in self._blocks]

    def _where(self, what: str, microbatch: int) -> str:
        return f"{what} of microbatch {microbatch}" + (f" in stage {self.number}" if self.piped else "")

    # -- forward -------------------------------------------------------------------------------------------------------

    def forward(self, microbatch: int) -> None:
        where, left = self._where("forward", microbatch), Counter[str]()
        self._left[microbatch], self._latest = left, microbatch
        self._enter(self._first)
        if self.is_first:
            self._play("forward first", left, where + ", first modules")
        else:
            self._add(left, Counter(other=self._trace.segments["forward first"].added["other"]))
        for index, (kind, unit) in enumerate(self._blocks):
            self._enter(unit)
            if index + 1 < len(self._blocks):
                self._blocks[index + 1][1].ask()
            self._play(f"forward {kind}", left, f"{where}, {unit.unit.name}")
            unit.after_forward()
        if self.is_last:
            self._enter(self._last)
            self._play("forward last", left, where + ", head and loss")
            self.drop_old_logits()
        self._ledger.add(BUFFERS, -self._gather_buffer)
        self._gather_buffer = 0

    def _enter(self, unit: Gathered | None) -> None:
        """Makes a unit whole; its buffer stays until the next unit has its own."""
        if unit is None or unit.whole or self._sizes.ranks == 0:
            return
        unit.ask()
        if self._sizes.ranks > 1:
            self._ledger.add(BUFFERS, -self._gather_buffer)
        self._gather_buffer = unit.wait()

    def drop_old_logits(self) -> None:
        self._ledger.add(LOGITS, -self._old_logits)
        self._old_logits = 0

    # -- backward ------------------------------------------------------------------------------------------------------

    def backward(self, microbatch: int, *, reduces: bool) -> None:
        """The whole backward; `reduces` says whether gradients are reduced in it."""
        where, left = self._where("backward", microbatch), self._left.pop(microbatch)
        if self.is_last:
            assert self._last is not None
            self._play("backward loss", left, where + ", loss")
            if self._blocks:
                self._blocks[-1][1].ask()
            self._differentiate(self._last, "last", left, where + ", head")
            if self._last is not self._first:
                self._close(self._last, "last", reduces)
        for index in range(len(self._blocks) - 1, -1, -1):
            kind, unit = self._blocks[index]
            self._ledger.add(BUFFERS, -unit.wait())
            if index > 0:
                self._blocks[index - 1][1].ask()
            self._differentiate(unit, kind, left, f"{where}, {unit.unit.name}")
            if index == len(self._blocks) - 1 and not self.is_last:
                self._add(left, Counter({UPSTREAM: self._trace.hidden}))  # what came in is a buffer that stays
            self._close(unit, kind, reduces)
        if self.is_first and self._first is not None:
            self._differentiate(self._first, "first", left, where + ", first modules")
            self._close(self._first, "first", reduces)
        if reduces:
            self._finish_reduction()
        self._leave(microbatch, left)

    def input_backward(self, microbatch: int) -> None:
        """The half that gives the gradient of the input; on the first stage the other half does it all."""
        if self.is_first or self._split is None:
            return
        where, left = self._where("input backward", microbatch), self._left[microbatch]
        if self.is_last:
            self._play("input loss", left, where + ", loss", self._split)
            self._play("input last", left, where + ", head", self._split)
        for kind, unit in reversed(self._blocks):
            unit.keep_gradients()
            self._play(f"input {kind}", left, f"{where}, {unit.unit.name}", self._split)

    def weight_backward(self, microbatch: int) -> None:
        """The half that gives the gradients of the weights; a checkpointed block is computed again for it, and held."""
        if self.is_first or self._split is None:
            self.backward(microbatch, reduces=False)
            return
        where, left = self._where("weight backward", microbatch), self._left.pop(microbatch)
        piece, traced = self._split.segments["weight+"], sum("checkpointed" in kind for kind in self._split.kinds)
        share = sum("checkpointed" in kind for kind in self.kinds) / traced if traced else 0.0
        if share or (self.is_last and not traced):
            scale = share or 1.0
            self._ledger.note(where, {category: round(size * scale) for category, size in piece.peak.items()})
        else:  # one gradient at a time is added to those that are there
            largest = max((size for unit in self.units for size in unit.tensor_bytes), default=0)
            self._ledger.note(where, {UNSHARDED_GRADIENTS: largest // self._sizes.master * self._sizes.compute})
        for call, count in Counter(piece.calls).items():
            self._count(call, round(count * share))
        for unit in self.units:
            if not unit.fresh:
                unit.made(unit.unit.numel * self._sizes.compute)
        self._leave(microbatch, left)
        self._ledger.note(where)

    def _differentiate(self, unit: Gathered, piece: str, left: Counter[str], where: str) -> None:
        unit.made(self._play(f"backward{'+' if unit.fresh else ''} {piece}", left, where))

    def _close(self, unit: Gathered, piece: str, reduces: bool) -> None:
        """A unit's backward is over: its parameters go, its gradients are reduced or kept."""
        if self._sizes.ranks == 0:
            return
        if not self.piped:
            unit.free()
        if reduces:
            self._reduce(unit, piece)
        else:
            unit.keep_gradients()

    def _reduce(self, unit: Gathered, piece: str) -> None:
        pieces = ("first", "last") if unit.unit.name == "root" else (piece,)
        temporary = 0
        for pending in (self._trace.segments.get(f"reduce {piece}", Segment()) for piece in pieces):
            temporary = max(temporary, pending.peak.total())
            scale = self._sizes.reduce / self._sizes.compute if unit.summed else 1
            for (name, operation, size), count in Counter(pending.calls).items():
                line = Line("tp", operation, "gradients of replicated weights", self._setting.tp)
                assert name == "tp"
                self._tally.add(line, round(size * scale), count)
        self._reduce_buffer = unit.reduce(self._reduce_buffer, temporary)

    def _finish_reduction(self) -> None:
        self._ledger.add(BUFFERS, -self._reduce_buffer)
        self._reduce_buffer = 0
        for unit in self.units:
            unit.finish()

    def _leave(self, microbatch: int, left: Counter[str]) -> None:
        self._ledger.now.subtract(left)
        if self.is_last and self.single and microbatch == self._latest:  # the loop's variable still names them
            self._old_logits = self._trace.logits
            self._ledger.add(LOGITS, self._old_logits)

    # -- the whole stage, as a pipeline's runtime does it --------------------------------------------------------------

    def gather_all(self) -> None:
        """All units at once; each buffer goes as its parameters are made."""
        for unit in self.units:
            unit.ask()
        for unit in self.units:
            self._ledger.add(BUFFERS, -unit.wait())

    def free_all(self) -> None:
        for unit in self.units:
            unit.free()

    def reduce_all(self) -> None:
        """After the last microbatch: unit by unit, its parameters freed first."""
        kinds = {unit.unit.name: kind for kind, unit in self._blocks}
        for unit in self.units:
            unit.free()
            self._reduce(unit, kinds.get(unit.unit.name, unit.unit.name))
        self._finish_reduction()

    # -- pieces --------------------------------------------------------------------------------------------------------

    def _play(self, name: str, left: Counter[str], where: str, trace: Trace | None = None) -> int:
        """Plays a piece; returns the bytes of gradients that it made."""
        piece = (trace or self._trace).segments[name]
        self._ledger.note(where, piece.peak)
        added = Counter(piece.added)
        made = added.pop(MADE, 0)
        self._add(left, added)
        for call, count in Counter(piece.calls).items():
            self._count(call, count)
        return made

    def _add(self, left: Counter[str], added: Counter[str]) -> None:
        self._ledger.now.update(added)
        left.update(added)

    def replace_left(self, microbatch: int, size: int) -> None:
        """Takes `size` bytes off what a microbatch leaves: the place of what the step before left."""
        self._add(self._left[microbatch], Counter(residual=-size))

    def _count(self, call: Call, count: int) -> None:
        name, operation, size = call
        line = Line(
            "cp" if name == "cp" else "tp",
            operation,
            _PURPOSE.get((name, operation), "hidden states"),
            self._setting.cp if name == "cp" else self._setting.tp,
        )
        self._tally.add(line, size, count)
