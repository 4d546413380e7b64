"""What FSDP holds and when: the life of each unit's gathered parameters and gradients, as torch 2.13's FSDP2 has it.

  - gather: the all-gather's buffer, then a copy of it as parameters; forward keeps the buffer until the next unit has
    its own, backward frees it at once. The next block is gathered ahead, in both directions.
  - reduce: gradients are copied into one buffer in the reduction's dtype, which lives until the next unit's; what
    comes out is the sharded gradient, or is added to it.
  - over one rank there is no collective, and the copies are made all the same.

`Ledger` is the account of live bytes; it keeps the highest point with what it was made of and where that was.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from titan.plan.parameters import Unit, shard

PARAMETERS, OPTIMIZER, GRADIENTS = "parameters", "optimizer state", "gradients"
UNSHARDED, UNSHARDED_GRADIENTS, BUFFERS = "unsharded parameters", "unsharded gradients", "communication buffers"


class Ledger:
    """Live bytes by category, and their highest point."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.where = ""
        self._total = 0

    def add(self, category: str, size: int) -> None:
        """Bytes that come, or go where negative."""
        self.now[category] += size

    def note(self, where: str, more: Mapping[str, int] | None = None) -> None:
        """Looks whether this moment, with `more` for an instant, is the highest so far."""
        total = self.now.total() + (sum(more.values()) if more else 0)
        if total > self._total:
            self._total, self.where, self.peak = total, where, Counter(self.now)
            self.peak.update(more or {})


@dataclass(frozen=True)
class Sizes:
    """Bytes of a value, and ranks.

    Attributes:
        ranks: that shard (dp_shard x cp); 0 for one process, which has no FSDP.
        kept: ranks over which a block stays sharded after its forward: 0 frees it down to its shard, 1 keeps it whole.
        compute, reduce, master: bytes of a value in the forward, in the reduction, in the optimizer.
    """

    ranks: int
    kept: int
    compute: int
    reduce: int
    master: int


class Gathered:
    """One FSDP unit of this rank.

    Args:
        resharded: whether its parameters are freed after the forward; those at the ends of the model stay.
    """

    def __init__(self, unit: Unit, sizes: Sizes, ledger: Ledger, *, resharded: bool) -> None:
        self.unit, self.sizes, self.ledger, self._resharded = unit, sizes, ledger, resharded
        self._shard = unit.shard_numel(max(1, sizes.ranks))
        whole = self._shard * sizes.ranks if sizes.ranks > 1 else unit.numel
        self.gathered_bytes = whole * sizes.compute
        self.reduced_bytes = whole * sizes.reduce
        self.shard_bytes = self._shard * sizes.master
        self.whole = self.pending = False
        self._partly = 0  # bytes of what is kept between a forward and a backward
        self.fresh = 0  # unsharded gradients as autograd made them
        self.summed = 0  # unsharded gradients added up in the reduction's dtype
        self._has_gradient = False
        self._held = 0

    def tensor_bytes(self) -> list[int]:
        """Bytes of each sharded tensor."""
        ranks = max(1, self.sizes.ranks)
        return [math.prod(shard(shape, ranks)) * self.sizes.master for _fqn, shape in self.unit.shapes]

    # -- parameters ---------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Starts the all-gather."""
        if self.whole or self.pending or self.sizes.ranks < 2:
            return
        self.pending = True
        if self.sizes.compute != self.sizes.master:  # the shard is cast into a buffer of its own first
            cast = self._shard * self.sizes.compute
            self.ledger.note(f"all-gather of {self.unit.name}", {BUFFERS: self.gathered_bytes + cast})
        self.ledger.add(BUFFERS, self.gathered_bytes)

    def wait(self) -> int:
        """Makes the parameters whole; returns the bytes of the all-gather's buffer, which the caller frees."""
        if self.whole or self.sizes.ranks == 0:
            return 0
        self.ask()
        held = self.gathered_bytes if self.pending else 0
        self.ledger.add(UNSHARDED, self.gathered_bytes - self._partly)
        self.ledger.note(f"all-gather of {self.unit.name}", {UNSHARDED: self._partly} if self._partly else None)
        self.whole, self.pending, self._partly = True, False, 0
        return held

    def after_forward(self) -> None:
        if self._resharded and self.whole:
            kept = self.sizes.kept
            self._partly = self.gathered_bytes // kept if kept > 1 else 0
            self.ledger.note(f"after the forward of {self.unit.name}", {UNSHARDED: self._partly})
            self.ledger.add(UNSHARDED, self._partly - self.gathered_bytes)
            self.whole = False

    def free(self) -> None:
        """Back to the shard."""
        if self.whole:
            self.ledger.add(UNSHARDED, -self.gathered_bytes)
            self.whole = False

    # -- gradients ----------------------------------------------------------------------------------------------------

    @property
    def adds(self) -> bool:
        """Whether the next backward of this unit adds to gradients that are there."""
        return self.fresh > 0

    def keep_gradients(self) -> None:
        """After a backward that does not reduce: added up in the reduction's dtype, where that is another."""
        if self.sizes.compute == self.sizes.reduce or not self.fresh:
            return
        if not self.summed:
            self.summed = self.fresh // self.sizes.compute * self.sizes.reduce
            self.ledger.add(UNSHARDED_GRADIENTS, self.summed)
            self.ledger.note(f"gradients of {self.unit.name}")
        self._drop_fresh()

    def _drop_fresh(self) -> None:
        self.ledger.add(UNSHARDED_GRADIENTS, -self.fresh)
        self.fresh = 0

    def reduce(self, before: int, temporary: int) -> int:
        """Reduces what is there. `before` is the last unit's buffer, `temporary` what tensor parallelism needs; returns
        this unit's buffer, which the caller hands to the next."""
        ledger, where = self.ledger, f"reduction of the gradients of {self.unit.name}"
        if self.summed:
            self._drop_fresh()
        ledger.note(where, {UNSHARDED_GRADIENTS: temporary})
        ledger.add(BUFFERS, self.reduced_bytes - before)
        ledger.note(where, {UNSHARDED_GRADIENTS: temporary})
        ledger.add(UNSHARDED_GRADIENTS, -self.fresh - self.summed)
        self.fresh = self.summed = 0
        output = self._shard * self.sizes.reduce
        if self.sizes.ranks == 1:  # divided into a copy, by one
            ledger.note(where, {BUFFERS: self.reduced_bytes + output})
        if self._has_gradient or self.sizes.master != self.sizes.reduce:
            ledger.add(BUFFERS, output)  # held until the end of the backward
        if not self._has_gradient:
            ledger.add(GRADIENTS, self.shard_bytes)
            self._has_gradient = True
            held = output if self.sizes.master != self.sizes.reduce else 0
        else:
            held = output
        ledger.note(where)
        self._held = held
        return self.reduced_bytes

    def finish(self) -> None:
        """The end of a backward that reduced."""
        self.ledger.add(BUFFERS, -self._held)
        self._held = 0
