"""What FSDP holds and when: the life of each unit's gathered parameters and gradients, as torch 2.13's FSDP2 has it.

- gather: the all-gather's buffer, then a copy of it as parameters; forward keeps the buffer until the next unit has
  its own, backward frees it at once. The next block is gathered ahead, in both directions.
- reduce: gradients are copied into one buffer in the reduction's dtype, which lives until the next unit's; what
  comes out is the sharded gradient, or is added to it.
- over one rank there is no collective, and the copies are made all the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from titan.plan.memory_account import (
    BUFFERS,
    GRADIENTS,
    UNSHARDED,
    UNSHARDED_GRADIENTS,
    Ledger,
    Line,
    Tally,
)
from titan.plan.parameters import Unit, shard


@dataclass(frozen=True)
class Sizes:
    """Bytes of a value, and ranks.

    Attributes:
        ranks: that shard (dp_shard x cp); 0 for one process, which has no FSDP.
        replicas: ranks that hold the same shard (dp_replicate).
        kept: ranks over which a block is sharded after its forward: all of them or fewer; 0 keeps it whole.
        compute, reduce, master: bytes of a value in the forward, in the reduction, in the optimizer.
    """

    ranks: int
    replicas: int
    kept: int
    compute: int
    reduce: int
    master: int


class Gathered:
    """One FSDP unit of this rank.

    Args:
        resharded: whether its parameters are freed after the forward; those at the ends of the model stay.
    """

    def __init__(self, unit: Unit, sizes: Sizes, ledger: Ledger, tally: Tally, *, resharded: bool) -> None:
        self.unit, self.sizes, self.resharded = unit, sizes, resharded
        self._ledger, self._tally = ledger, tally
        self._shard = unit.shard_numel(max(1, sizes.ranks))
        whole = self._shard * sizes.ranks if sizes.ranks > 1 else unit.numel
        self.gathered_bytes = whole * sizes.compute
        self.reduced_bytes = whole * sizes.reduce
        self.shard_bytes = self._shard * sizes.master
        self.whole = False
        self.fresh = 0
        """Bytes of unsharded gradients as autograd made them."""
        self._summed = 0  # of those added up in the reduction's dtype
        self._pending = False  # the all-gather has begun
        self._partly = 0  # bytes that are kept between a forward and a backward, where they are not all or the shard
        self._has_gradient = False
        self._held = 0  # of the reduction's output, until the end of the backward

    @property
    def tensor_bytes(self) -> list[int]:
        """Bytes of each sharded tensor."""
        ranks = max(1, self.sizes.ranks)
        return [math.prod(shard(shape, ranks)) * self.sizes.master for _fqn, shape in self.unit.shapes]

    # -- parameters ----------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Starts the all-gather."""
        if self.whole or self._pending or self.sizes.ranks < 2:
            return
        self._pending = True
        group = self.sizes.kept if self._partly else self.sizes.ranks
        self._tally.add(Line("fsdp", "all_gather", "parameters", group), self.gathered_bytes)
        if self.sizes.compute != self.sizes.master:  # the shard is cast into a buffer of its own first
            cast = self._shard * self.sizes.compute
            self._ledger.note(f"all-gather of {self.unit.name}", {BUFFERS: self.gathered_bytes + cast})
        self._ledger.add(BUFFERS, self.gathered_bytes)

    def wait(self) -> int:
        """Makes the parameters whole; returns the bytes of the all-gather's buffer, which the caller frees."""
        if self.whole or self.sizes.ranks == 0:
            return 0
        self.ask()
        held = self.gathered_bytes if self._pending else 0
        self._ledger.add(UNSHARDED, self.gathered_bytes)
        self._ledger.note(f"all-gather of {self.unit.name}")
        self._ledger.add(UNSHARDED, -self._partly)
        self.whole, self._pending, self._partly = True, False, 0
        return held

    def after_forward(self) -> None:
        """Frees what the configuration does not keep."""
        if not self.resharded or not self.whole:
            return
        if self.sizes.kept < self.sizes.ranks:
            self._partly = self.gathered_bytes // self.sizes.kept
            self._ledger.add(UNSHARDED, self._partly)
            self._ledger.note(f"after the forward of {self.unit.name}")
        self.free()

    def free(self) -> None:
        """Back to the shard."""
        if self.whole:
            self._ledger.add(UNSHARDED, -self.gathered_bytes)
            self.whole = False

    # -- gradients -----------------------------------------------------------------------------------------------------

    @property
    def summed(self) -> bool:
        """Whether gradients wait in the reduction's dtype."""
        return self._summed > 0

    def made(self, size: int) -> None:
        """Autograd made gradients of so many bytes."""
        self._ledger.add(UNSHARDED_GRADIENTS, size)
        self.fresh += size

    def keep_gradients(self) -> None:
        """After a backward that does not reduce: added up in the reduction's dtype, where that is another."""
        if self.sizes.compute == self.sizes.reduce or not self.fresh:
            return
        if not self._summed:
            self._summed = self.fresh // self.sizes.compute * self.sizes.reduce
            self._ledger.add(UNSHARDED_GRADIENTS, self._summed)
            self._ledger.note(f"gradients of {self.unit.name}")
        self._drop_fresh()

    def _drop_fresh(self) -> None:
        self._ledger.add(UNSHARDED_GRADIENTS, -self.fresh)
        self.fresh = 0

    def reduce(self, before: int, temporary: int) -> int:
        """Reduces what is there.

        Args:
            before: bytes of the buffer of the unit that was reduced before, which goes.
            temporary: bytes that tensor parallelism needs to make the gradients whole.

        Returns the bytes of this unit's buffer, which the caller hands on.
        """
        ledger, sizes, where = self._ledger, self.sizes, f"reduction of the gradients of {self.unit.name}"
        if self._summed:
            self._drop_fresh()
        ledger.note(where, {UNSHARDED_GRADIENTS: temporary})
        ledger.add(BUFFERS, self.reduced_bytes - before)
        ledger.note(where, {UNSHARDED_GRADIENTS: temporary})
        ledger.add(UNSHARDED_GRADIENTS, -self.fresh - self._summed)
        self.fresh = self._summed = 0
        output = self._shard * sizes.reduce
        if sizes.ranks == 1:  # divided into a copy, by one
            ledger.note(where, {BUFFERS: self.reduced_bytes + output})
        self._tally.add(Line("fsdp", "reduce_scatter", "gradients", sizes.ranks), self.reduced_bytes)
        self._tally.add(Line("dp_replicate", "all_reduce", "gradients", sizes.replicas), output)
        # What comes out becomes the gradient, unless it is added to one or cast; then it is held to the end.
        self._held = output if self._has_gradient or sizes.master != sizes.reduce else 0
        ledger.add(BUFFERS, self._held)
        if not self._has_gradient:
            ledger.add(GRADIENTS, self.shard_bytes)
        self._has_gradient = True
        ledger.note(where)
        return self.reduced_bytes

    def finish(self) -> None:
        """The end of a backward that reduced."""
        self._ledger.add(BUFFERS, -self._held)
        self._held = 0
