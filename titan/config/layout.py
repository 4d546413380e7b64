"""Degrees and batch of one run, after every -1 has been replaced by a number.

Plain values that the rest of the trainer is built from: which rank does what follows from `Degrees`, which row goes
where follows from `Batch`. Both are pure functions of the configuration and the world size, so that a plan, a check and
a run agree.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Degrees:
    """Size of each mesh dimension; the world is their product, in this order from outermost to innermost."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1

    @property
    def world_size(self) -> int:
        return self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def batch(self) -> int:
        """Number of ranks that read different rows."""
        return self.dp_replicate * self.dp_shard

    @property
    def fsdp(self) -> int:
        """Number of ranks over which parameters are sharded: cp ranks hold different tokens of one model, so they join
        in."""
        return self.dp_shard * self.cp

    def __str__(self) -> str:
        named = (
            ("pp", self.pp),
            ("dp_replicate", self.dp_replicate),
            ("dp_shard", self.dp_shard),
            ("cp", self.cp),
            ("tp", self.tp),
        )
        return " x ".join(f"{name} {size}" for name, size in named if size > 1) or "one process"


@dataclass(frozen=True)
class Batch:
    """Rows of one optimizer step: `global_rows = rows x accumulation x batch ranks`.

    `rows` is what one batch rank puts through one forward, or through one step of a pipeline schedule, which cuts it
    into microbatches of `microbatch_size` rows.
    """

    global_rows: int
    rows: int
    accumulation: int
    microbatch_size: int

    @property
    def microbatches(self) -> int:
        return self.rows // self.microbatch_size
