"""After a step that is not finite: which rows, which gradients, which weights, on which rank. Runs only then.

The weights are those that the step began with, since the optimizer has not taken it, so the forward can be run again
row by row where there is no pipeline; a pipeline has a loss a microbatch, which is one row by default. A forward that
is finite when it is run again points at the hardware. Reductions spread one NaN over all ranks, so that rows say more
than gradients about where it came from; of the gradients, that nearest to the output, which the backward met first, is
named for each pipeline rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from titan.parallelisms.parameters import NamedParameter
from titan.parallelisms.shards import local_tensor

_SHOWN = 8


@dataclass(frozen=True)
class Finding:
    """What is not finite on one rank.

    Attributes:
        rank, stage: of the job, and along the pipeline.
        rows: global numbers of rows with a loss that is not finite.
        repeated: whether the rows come from a forward that was run again; then `rows` may be empty where the first
            loss was not finite.
        loss_bad: whether the loss of the step itself was not finite on this rank.
        gradients: parameters with a gradient that is not finite, in the order of the backward.
        weights: parameters that are not finite themselves.
    """

    rank: int
    stage: int
    rows: list[int] = field(default_factory=list)
    repeated: bool = False
    loss_bad: bool = False
    gradients: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)


def rows_of_losses(losses: Sequence[Tensor], first_row: int, rows_each: int) -> list[int]:
    """Rows under losses that are not finite, where loss number i is that of `rows_each` rows from
    `first_row + i * rows_each` on."""
    bad = [index for index, loss in enumerate(losses) if not loss.isfinite().item()]
    return [first_row + index * rows_each + row for index in bad for row in range(rows_each)]


def repeat_rows(
    part: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    positions: Tensor,
) -> list[Tensor]:
    """The loss of each row, 0-dim each, by forwards of the same shapes as the step's. A collective call.

    Args:
        part: the whole model as this rank holds it.
        batches: (inputs, labels) of each accumulation step, `(rows, seq / cp)`, on the device.
    """
    losses = []
    for inputs, labels in batches:
        # With gradients, so that a compiled block is not compiled again; nothing goes backward.
        logits = part(inputs, positions).detach()
        with torch.no_grad():
            losses += [loss(logits[row : row + 1], labels[row : row + 1]) for row in range(len(labels))]
    for module in part.modules():
        if isinstance(module, FSDPModule):  # the backward would have done it; gathered weights would go stale
            module.reshard()
    return losses


def examine(finding: Finding, parameters: Sequence[NamedParameter]) -> Finding:
    """Adds what is not finite among the parameters of this rank and their gradients."""

    def bad(tensor: Tensor | None) -> bool:
        return tensor is not None and not bool(local_tensor(tensor).isfinite().all())

    finding.gradients.extend(named.fqn for named in reversed(parameters) if bad(named.parameter.grad))
    finding.weights.extend(named.fqn for named in parameters if bad(named.parameter))
    return finding


def gather(mine: Finding) -> list[Finding]:
    """The findings of all ranks, on all ranks. A collective call."""
    if not dist.is_initialized():
        return [mine]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def report(
    step: int, loss: float, norm: float, rows: range, findings: Sequence[Finding], *, taken: bool = False
) -> str:
    """Sentences for the log and the error: step, numbers, rows, ranks, parameters; the same on every rank. `taken`:
    the backward has updated the weights already."""
    said = [
        f"step {step}: the loss is {loss} and the gradient norm {norm} over rows {rows.start} to {rows.stop - 1}; the "
        f"optimizer has {'' if taken else 'not '}taken this step."
    ]
    bad_rows = sorted({row for one in findings for row in one.rows})
    if bad_rows:
        holders = _ranks([one for one in findings if one.rows])
        said.append(f"Loss not finite in {'row' if len(bad_rows) == 1 else 'rows'} {_listed(bad_rows)} ({holders}).")
    elif any(one.loss_bad for one in findings):
        holders = _ranks([one for one in findings if one.loss_bad])
        said.append(
            f"The loss was not finite on {holders}, and is finite in every row when the forward is run again: suspect "
            "the hardware."
        )
    spoilt = _by_name([(one, one.weights) for one in findings])
    if spoilt:
        said.append(f"Weights not finite: {spoilt}.")
    gradients = _by_name([(one, one.gradients[:1]) for one in findings])
    if gradients:
        said.append(f"Gradient not finite, nearest to the output: {gradients}.")
    elif not bad_rows and not spoilt:
        said.append("Every gradient is finite: their norm is too large for float32.")
    return " ".join(said)


def report_spoilt(step: int, findings: Sequence[Finding]) -> str:
    """What an update has left that is not finite; found before a save."""
    weights = _by_name([(one, one.weights) for one in findings])
    what = f"the weights are not finite: {weights}" if weights else "the optimizer state is not finite"
    return f"step {step}: after the update {what}. Nothing of it has been saved."


def _by_name(found: Sequence[tuple[Finding, Sequence[str]]]) -> str:
    names: dict[str, list[Finding]] = {}
    for one, fqns in found:
        for fqn in fqns:
            names.setdefault(fqn, []).append(one)
    return _listed([f"{fqn} ({_ranks(holders)})" for fqn, holders in names.items()])


def _ranks(findings: Sequence[Finding]) -> str:
    ranks, stages = sorted(one.rank for one in findings), sorted({one.stage for one in findings})
    text = f"{'rank' if len(ranks) == 1 else 'ranks'} {_listed(ranks)}"
    return f"{text}, pipeline rank {_listed(stages)}"


def _listed(items: Sequence[Any]) -> str:
    shown = ", ".join(map(str, items[:_SHOWN]))
    return shown if len(items) <= _SHOWN else f"{shown} and {len(items) - _SHOWN} more"
