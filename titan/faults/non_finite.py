"""A loss, a gradient or a weight that is not finite: end the run, skip the step, or go back and past the rows.

Seen before the optimizer by the all-reduce of the norm, which is NaN on every rank as soon as one rank's loss or
gradient is not finite, so that all take the same way out. A skipped or rewound step counts against a budget of the
whole run: checkpoints carry the count. Weights and optimizer state are looked at before each save, so that no
checkpoint with a NaN in it replaces a good one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from titan.parallelisms.parameters import NamedParameter
from titan.parallelisms.shards import local_tensor
from titan.runtime.errors import NOT_FINITE

Action = Literal["fail", "skip", "rewind"]


class NonFinite(RuntimeError):
    """The loss, the gradient or the state is not finite and the run ends; raised on every rank, before any save."""

    exit_code = NOT_FINITE


class NonFinitePolicy:
    """`training.non_finite` and its budget.

    Attributes:
        count: steps of the run that were skipped or rewound so far.
    """

    def __init__(self, action: Action, budget: int) -> None:
        self._action, self._budget = action, budget
        self.count = 0

    def decide(self, report: str, *, spoilt: bool = False) -> Literal["skip", "rewind"]:
        """What to do now; counts it.

        Args:
            report: what is not finite and where; the error's text.
            spoilt: the weights or the optimizer state are not finite, which a skip does not mend.

        Raises:
            NonFinite: the policy, the budget or the damage ends the run.
        """
        if self._action == "fail":
            advice = (
                "Lower optimizer.lr or raise lr_scheduler.warmup_steps; or set training.non_finite to skip or rewind."
            )
            raise NonFinite(f"{report} {advice}")
        if self._action == "skip" and spoilt:
            raise NonFinite(
                f'{report} training.non_finite = "skip" cannot mend it; "rewind" goes back to a checkpoint.'
            )
        if self.count >= self._budget:
            raise NonFinite(
                f"{report} training.non_finite_budget = {self._budget} is spent: {self.count} steps of this run were "
                f"skipped or rewound before."
            )
        self.count += 1
        return self._action


@torch.no_grad()
def is_finite(parameters: Sequence[NamedParameter], optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
    """Whether every weight and every optimizer state of the job is finite; the same answer on every rank.

    A collective call that waits for the device and reads all state once: for saves, not for steps.
    """
    tensors: list[Tensor] = [named.parameter for named in parameters]
    tensors += [
        value
        for named in parameters
        for value in optimizer.state.get(named.parameter, {}).values()
        if isinstance(value, Tensor)
    ]
    bad = torch.zeros((), device=device)
    for local in (local_tensor(tensor) for tensor in tensors):
        if local.is_floating_point() and local.numel():
            # One pass and no mask in memory: the largest magnitude, NaN where there is one.
            bad += local.abs().amax().isfinite().logical_not().to(device)
    if dist.is_initialized():
        dist.all_reduce(bad)
    return bad.item() == 0


def is_bad(norm: float) -> bool:
    """Whether the norm that `global_norm` gave says that the step must not be taken."""
    return not math.isfinite(norm)
