"""Learning rate by step: warm-up, stable, decay (WSD; Hu et al., 2024, arXiv:2404.06395). A pure function of the step number.

With steps numbered from 1, w warm-up, d decay and n total steps:
  - warm-up, step <= w: step / w; the first step already learns, step w is at the peak;
  - stable, w < step <= n - d: 1;
  - decay, step > n - d: from 1 towards the floor m, at x = (step - (n - d)) / d: linear m + (1 - m)(1 - x), sqrt m + (1 - m)(1 - sqrt x),
    cosine m + (1 - m)(1 + cos(pi x)) / 2; step n is at m, and so is every later one.
Without `decay_ratio` the decay begins right after warm-up. A warm-up longer than n is cut to n, a decay to n - w.
"""

from __future__ import annotations

import math

import torch

from titan.config.schema import LRScheduler


def factor(step: int, section: LRScheduler, steps: int) -> float:
    """Fraction of the peak at `step` (from 1) of a run of `steps`; `section.total_steps` stands for `steps` where set."""
    total = steps if section.total_steps is None else section.total_steps
    warmup = min(section.warmup_steps, total)
    decay = total - warmup if section.decay_ratio is None else min(round(total * section.decay_ratio), total - warmup)
    if step <= warmup:
        return step / warmup
    if step <= total - decay:
        return 1.0
    if not decay:  # nothing to decay over: the peak is kept
        return 1.0
    done = min(1.0, (step - (total - decay)) / decay)
    left = {"linear": 1.0 - done, "sqrt": 1.0 - math.sqrt(done), "cosine": (1.0 + math.cos(math.pi * done)) / 2}
    return section.min_lr_factor + (1.0 - section.min_lr_factor) * left[section.decay_type]


class LRSchedule:
    """Sets the learning rate of each step; it has no state but the step's number, so a resume needs none."""

    def __init__(self, optimizer: torch.optim.Optimizer, section: LRScheduler, *, peak: float, steps: int) -> None:
        self._optimizer, self._section, self._peak, self._steps = optimizer, section, peak, steps

    def apply(self, step: int) -> float:
        """Call before the optimizer step number `step`, from 1; returns the rate."""
        rate = self._peak * factor(step, self._section, self._steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate
