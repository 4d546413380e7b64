"""Which rank is slow: the time of its own work in a block, where no peer is waited for.

Ranks take equally long for a step, since each waits for the slowest. What differs is the forward of a block between
FSDP's hooks, which holds no collective but those of tp and cp: the median over the blocks and microbatches of one
logged step. All blocks do the same work, so that ranks and pipeline stages compare; peers in tp or cp wait for each
other inside and are slow together. The wait for data is compared too. Off log steps a hook is one test of a flag.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class BlockTimes:
    """Measures the forwards of `blocks` while `active`; made after `fully_shard`, so that its waits are outside."""

    def __init__(self, blocks: Sequence[nn.Module], device: torch.device) -> None:
        self.active = False
        self._device = device
        self._begun: Any = None
        self._spans: list[tuple[Any, Any]] = []
        for block in blocks:
            block.register_forward_pre_hook(self._begin)
            block.register_forward_hook(self._end, prepend=True)

    @torch._dynamo.disable  # type: ignore[untyped-decorator, unused-ignore]
    def _begin(self, module: nn.Module, args: Any) -> None:
        if self.active:
            self._begun = self._mark()

    @torch._dynamo.disable  # type: ignore[untyped-decorator, unused-ignore]
    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.active and self._begun is not None:
            self._spans.append((self._begun, self._mark()))
            self._begun = None

    def _mark(self) -> Any:
        if self._device.type == "cpu":
            return time.perf_counter()
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def read(self) -> float:
        """Median seconds of a block's forward since `active` was set, 0.0 where none ran; the device must be done."""
        spans, self._spans, self.active = self._spans, [], False
        if self._device.type == "cpu":
            return median([end - begin for begin, end in spans]) if spans else 0.0
        return median([begin.elapsed_time(end) / 1e3 for begin, end in spans]) if spans else 0.0


@dataclass(frozen=True)
class RankTimes:
    """Seconds of each rank, by rank: in a block's forward, waiting for data."""

    block: list[float]
    data: list[float]


def gather(block: float, data: float, device: torch.device) -> RankTimes:
    """All ranks' times. A collective call, for log steps."""
    mine = torch.tensor([block, data], dtype=torch.float32, device=device)
    if not dist.is_initialized():
        return RankTimes([block], [data])
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    blocks, waits = torch.stack(every).T.tolist()
    return RankTimes(blocks, waits)


def metrics(times: RankTimes) -> dict[str, float]:
    """What a logged step reports of the ranks: the slowest by block time, how slow, and the longest wait for data."""
    slowest = max(range(len(times.block)), key=times.block.__getitem__)
    typical = median_low(times.block)
    return {
        "block_seconds": typical,
        "slowest_rank": slowest,
        "slowest_ratio": times.block[slowest] / typical if typical > 0 else 1.0,
        "data_seconds": max(times.data),
    }


class Stragglers:
    """Tells of a rank that is slow at two logged steps in a row: once is noise.

    Args:
        ratio: how many times the (lower) median its time a block may be.
        stages: pipeline rank of each rank.
    """

    def __init__(self, ratio: float, stages: Sequence[int]) -> None:
        self._ratio, self._stages = ratio, stages
        self._suspect: int | None = None

    def warning(self, step: int, times: RankTimes) -> str | None:
        """One line about the slowest rank of this logged step, or None."""
        values = metrics(times)
        slowest, typical = int(values["slowest_rank"]), values["block_seconds"]
        before, self._suspect = self._suspect, slowest if values["slowest_ratio"] > self._ratio else None
        if self._suspect is None or self._suspect != before:
            return None
        return (
            f"step {step}: rank {slowest} (pipeline rank {self._stages[slowest]}) is slow: "
            f"{1e3 * times.block[slowest]:.2f} ms a block, {values['slowest_ratio']:.1f} times the median of "
            f"{1e3 * typical:.2f} ms"
        )


def blocks_of(parts: Sequence[nn.Module], container: str) -> list[nn.Module]:
    """The repeated layers of this rank's model parts; a part that has no such container has none."""
    found = [dict(part.named_modules()).get(container) for part in parts]
    return [block for one in found if one is not None for block in one.children()]
