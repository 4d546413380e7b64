"""Pipeline stages and schedules: cuts a model by module names, and builds torch's schedule over the stages of this
rank.

The loss is a sum divided by the global token count already, so the schedule must not scale gradients. Shapes
between stages are known from the degrees and given to each stage, which saves torch's trial forward and backward. A
tied weight that stands on two stages is one parameter all the same: its two gradients are exchanged and added
before the norm, and it counts and saves once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.microbatch import _Replicate
from torch.distributed.pipelining.schedules import (
    PipelineScheduleSingle,
    _PipelineSchedule,
    _PipelineScheduleRuntime,
    get_schedule_class,
)

from titan.models.registry import Stages
from titan.parallelisms.data_parallel import sum_in_reduce_dtype
from titan.parallelisms.loss import TokenLoss
from titan.parallelisms.parameters import NamedParameter
from titan.parallelisms.shards import local_tensor
from titan.parallelisms.stages import csv_has_communication


def keep_modules(model: nn.Module, order: Stages, fqns: Sequence[str]) -> nn.Module:
    """Cuts a whole model down, in place, to the named modules; layers keep their global numbers."""
    blocks = model.get_submodule(order.blocks)
    if not isinstance(blocks, nn.ModuleDict):
        raise TypeError(f"{order.blocks} must be an nn.ModuleDict of layers, not {type(blocks).__name__}")
    for name in list(blocks):
        if f"{order.blocks}.{name}" not in fqns:
            del blocks[name]
    for name in (*order.first, *order.last):
        if name not in fqns:
            setattr(model, name, None)
    return model


@dataclass(frozen=True)
class StageShapes:
    """Shapes at the ends of a stage, for one microbatch on this rank.

    Attributes:
        ids: (microbatch, seq / cp).
        hidden: (microbatch, seq / cp / tp, dim).
        logits: (microbatch, seq / cp, vocab), or this rank's columns.
        dtype: of hidden states and logits.
    """

    ids: tuple[int, ...]
    hidden: tuple[int, ...]
    logits: tuple[int, ...]
    dtype: torch.dtype

    def of(self, stage: int, n_stages: int) -> tuple[Tensor, Tensor]:
        """Examples of input and output on the meta device."""
        hidden = torch.empty(self.hidden, dtype=self.dtype, device="meta", requires_grad=True)
        first = torch.empty(self.ids, dtype=torch.int64, device="meta")
        last = torch.empty(self.logits, dtype=self.dtype, device="meta", requires_grad=True)
        return first if stage == 0 else hidden, last if stage == n_stages - 1 else hidden


class _Stage(PipelineStage):
    """A stage whose weight gradients are summed over microbatches in the reduce dtype under every schedule."""

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        sum_in_reduce_dtype(self.submod)


def build_schedule(
    parts: Sequence[nn.Module],
    *,
    stage_ids: Sequence[int],
    n_stages: int,
    shapes: StageShapes,
    mesh: DeviceMesh,
    device: torch.device,
    schedule: str,
    csv_file: Path | None,
    microbatches: int,
    loss: TokenLoss,
) -> _PipelineSchedule:
    """The schedule of this rank over its `parts`, which are stages number `stage_ids`, on a 1-D mesh."""
    stages = []
    for part, number in zip(parts, stage_ids, strict=True):
        given, returned = shapes.of(number, n_stages)
        stages.append(
            _Stage(part, number, n_stages, device, input_args=given, output_args=returned, group=mesh.get_group())
        )
    options: dict[str, Any] = dict(n_microbatches=microbatches, loss_fn=loss, scale_grads=False)
    built: _PipelineSchedule
    if csv_file is not None:
        # A private class: torch has no public way to run a schedule from a file. Used here and nowhere else.
        built = _PipelineScheduleRuntime(stages, **options)  # type: ignore[no-untyped-call]
        built._load_csv(str(csv_file), format="compute_comms" if csv_has_communication(csv_file) else "compute_only")
    else:
        schedule_class = get_schedule_class(schedule)
        single = issubclass(schedule_class, PipelineScheduleSingle)
        built = schedule_class(stages[0] if single else stages, **options)
    # All microbatches have the same positions. Not an argument: LoopedBFS's constructor does not take it.
    built._kwargs_chunk_spec = {"positions": _Replicate}  # type: ignore[dict-item]
    return built


def export_schedule(schedule: _PipelineSchedule, path: Path) -> None:
    """Writes a multi-stage schedule's actions, sends and receives included, as CSV, one row a rank."""
    if not isinstance(schedule, _PipelineScheduleRuntime):
        raise TypeError(f"{type(schedule).__name__} has no action list to export; the multi-stage schedules have")
    schedule._dump_csv(str(path), format="compute_comms")


class TiedGradients:
    """Adds up the two gradients of each tied parameter whose copies stand on the first and the last stage.

    Args:
        parameters: this rank's; a copy has `counted` False.
        mesh: the 1-D pipeline mesh.
        ends: pp ranks of the first and the last stage.
    """

    def __init__(
        self, parameters: Sequence[NamedParameter], tied: Sequence[str], mesh: DeviceMesh, ends: tuple[int, int]
    ) -> None:
        self._group = mesh.get_group()
        self._peer = {ends[0]: ends[1], ends[1]: ends[0]}.get(mesh.get_local_rank())
        self._copies = [
            [named.parameter for named in parameters if named.fqn == fqn] for fqn in tied if self._peer is not None
        ]

    def reduce(self) -> None:
        """Call after the last backward of a step and before the norm, on every rank."""
        for copies in self._copies:
            grads = [_local_grad(parameter) for parameter in copies]
            if len(grads) == 2:  # a V schedule holds both ends on one rank
                grads[0].add_(grads[1])
                grads[1].copy_(grads[0])
            elif grads:
                grads[0].add_(self._exchange(grads[0]))

    def _exchange(self, mine: Tensor) -> Tensor:
        theirs = torch.empty_like(mine)
        operations = [
            dist.P2POp(dist.isend, mine, group=self._group, group_peer=self._peer),
            dist.P2POp(dist.irecv, theirs, group=self._group, group_peer=self._peer),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return theirs


def _local_grad(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return local_tensor(parameter.grad)
