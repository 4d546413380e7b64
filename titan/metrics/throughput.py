"""Rates between two logged steps: tokens/s of the job, seconds a step, share of the peak, time left.

Tokens are those of the global batch, counted once whatever the degrees; the clock includes waiting for data, which is reported too.
"""

from __future__ import annotations

import time


class Throughput:
    """Call `step` after each optimizer step and `read` at a log step.

    Args:
        flops_per_token: forward and backward of one token, over the whole model.
        peak: FLOP/s of all devices together, None where unknown.
    """

    def __init__(self, *, flops_per_token: float, peak: float | None) -> None:
        self._flops_per_token, self._peak = flops_per_token, peak
        self._begin()

    def _begin(self) -> None:
        self._since, self._steps, self._tokens, self._waited = time.perf_counter(), 0, 0, 0.0

    def step(self, *, tokens: int, waited: float) -> None:
        """One step of `tokens` over the whole job, of which this rank waited `waited` seconds for data."""
        self._steps += 1
        self._tokens += tokens
        self._waited += waited

    def read(self, *, steps_left: int) -> dict[str, float]:
        """Rates since the last read, which begin anew: tokens_per_second, step_seconds, data_seconds, eta_seconds, mfu if known."""
        seconds = max(time.perf_counter() - self._since, 1e-9)
        steps = max(self._steps, 1)
        rates = {
            "tokens_per_second": self._tokens / seconds,
            "step_seconds": seconds / steps,
            "data_seconds": self._waited / steps,
            "eta_seconds": steps_left * seconds / steps,
        }
        if self._peak is not None:
            rates["mfu"] = rates["tokens_per_second"] * self._flops_per_token / self._peak
        self._begin()
        return rates
