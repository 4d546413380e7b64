"""Learning rate by step: warm-up, stable, decay (WSD; Hu et al., 2024, arXiv:2404.06395), a pure function of the step.

With steps numbered from 1, w of warm-up, d of decay, n in total and a floor m = min_lr_factor:
  - warm-up, step <= w: step / w. The first step already learns, step w is at the peak.
  - stable, w < step <= n - d + 1: 1. Without warm-up step 1 is at the peak.
  - decay, step > n - d + 1: m + (1 - m) c(x) with x = (step - (n - d + 1)) / d and
    linear c = 1 - x, sqrt c = 1 - sqrt(x), cosine c = (1 + cos(pi x)) / 2.
The floor is that of step n + 1, so that the last step, at x = (d - 1) / d, still learns where m is 0: the numbers of
torchtitan 0.2.2. Without `decay_ratio`, d is n - w. A warm-up longer than n is cut to n, a decay longer than n - w to
n - w. After step n the rate stays at m, or at the peak where there is no decay. decay_ratio = 0 is a constant rate.
"""

from __future__ import annotations

import math

import torch

from titan.config.schema import LRScheduler


def factor(step: int, section: LRScheduler, steps: int) -> float:
    """Fraction of the peak rate at `step`, in [0, 1].

    Args:
        step: from 1.
        section: `section.total_steps` stands for `steps` where set.
        steps: length of the run.

    Raises:
        ValueError: `step` is less than 1.
    """
    if step < 1:
        raise ValueError(f"steps are numbered from 1, not {step}")
    total = steps if section.total_steps is None else section.total_steps
    warmup = min(section.warmup_steps, total)
    longest = total - warmup
    decay = longest if section.decay_ratio is None else min(round(total * section.decay_ratio), longest)
    if step <= warmup:
        return step / warmup
    peak_until = total - decay + 1
    if step <= peak_until or decay == 0:
        return 1.0
    done = min(1.0, (step - peak_until) / decay)
    match section.decay_type:
        case "linear":
            left = 1.0 - done
        case "sqrt":
            left = 1.0 - math.sqrt(done)
        case "cosine":
            left = (1.0 + math.cos(math.pi * done)) / 2
    return section.min_lr_factor + (1.0 - section.min_lr_factor) * left


class LRSchedule:
    """Sets the learning rate of each step; it has no state but the step's number, so a resume needs none.

    Args:
        optimizer: all its groups get the same rate.
        peak: `optimizer.lr` of the configuration.
        steps: `training.steps`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, section: LRScheduler, *, peak: float, steps: int) -> None:
        self._optimizer, self._section, self._peak, self._steps = optimizer, section, peak, steps

    def apply(self, step: int) -> float:
        """Call before the optimizer takes step number `step`, from 1; returns the rate."""
        rate = self._peak * factor(step, self._section, self._steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate
