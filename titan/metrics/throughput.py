"""Rates between two logged steps: tokens/s of the job and of a device, seconds a step, share of the peak, time left.

Tokens are those of the global batch, counted once whatever the degrees; FLOPs are the whole model's. The clock is the
wall's, so that waiting for data, saving and logging are in it; the wait for data is reported beside it.
"""

from __future__ import annotations

import time


class Throughput:
    """Call `step` after each optimizer step and `read` at a log step, once the device has finished the step.

    Args:
        flops_per_token: forward and backward of one token, over the whole model.
        peak: FLOP/s of all devices together, None where unknown.
        devices: how many compute.
    """

    def __init__(self, *, flops_per_token: float, peak: float | None, devices: int = 1) -> None:
        self._flops_per_token, self._peak, self._devices = flops_per_token, peak, devices
        self._begin()

    def _begin(self) -> None:
        self._since, self._steps, self._tokens, self._waited = time.perf_counter(), 0, 0, 0.0

    def step(self, *, tokens: int, waited: float) -> None:
        """One step of `tokens` over the whole job, of which this rank waited `waited` seconds for data."""
        self._steps += 1
        self._tokens += tokens
        self._waited += waited

    def read(self, *, steps_left: int) -> dict[str, float]:
        """Rates since the last read, which begin anew.

        Returns:
            tokens_per_second and tokens_per_second_per_device; step_seconds and, of these, data_seconds; eta_seconds;
            mfu, model FLOPs over peak FLOPs (Chowdhery et al., 2022, appendix B), only where the peak is known.
        """
        seconds = max(time.perf_counter() - self._since, 1e-9)
        steps = max(self._steps, 1)
        rates = {
            "tokens_per_second": self._tokens / seconds,
            "tokens_per_second_per_device": self._tokens / seconds / self._devices,
            "step_seconds": seconds / steps,
            "data_seconds": self._waited / steps,
            "eta_seconds": steps_left * seconds / steps,
        }
        if self._peak is not None:
            rates["mfu"] = rates["tokens_per_second"] * self._flops_per_token / self._peak
        self._begin()
        return rates
