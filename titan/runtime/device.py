"""The device that a process computes on: torch's accelerator where there is one, else the CPU.

Nothing asks for a device by name, so that CUDA, ROCm, XPU and the CPU run the same code. `TITAN_DEVICE=cpu` in the
environment forces the CPU on a machine that has an accelerator.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from typing import TYPE_CHECKING

from titan.config.problems import ConfigError, Problem

if TYPE_CHECKING:
    import torch

_GIB = 2**30


def device_type() -> str:
    """ "cpu", or the type of this machine's accelerator, "cuda" for instance.

    Raises ConfigError where TITAN_DEVICE asks for a type that this machine does not have.
    """
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    found = "cpu" if accelerator is None else accelerator.type
    wanted = os.environ.get("TITAN_DEVICE") or found
    if wanted not in ("cpu", found):
        text = f"this machine has {found}; write {' or '.join(sorted({'cpu', found}))}, or leave it out."
        raise ConfigError([Problem("TITAN_DEVICE", text, value=wanted, origin="environment")])
    return wanted


def device_count(kind: str) -> int:
    """How many devices of a type processes can be spread over: visible accelerators; 1 CPU, which all share."""
    import torch

    return 1 if kind == "cpu" else torch.accelerator.device_count()


def local_device(local_rank: int) -> torch.device:
    """The device of the process with this rank on its machine, made current.

    Raises ConfigError where there are fewer accelerators than processes: two on one device deadlock in NCCL.
    """
    import torch

    kind = device_type()
    if kind == "cpu":
        return torch.device("cpu")
    count = torch.accelerator.device_count()
    if local_rank >= count:
        text = f"the machine shows {count} {kind} device(s), one a process; start at most {count} processes on it."
        raise ConfigError([Problem("LOCAL_RANK", text, value=str(local_rank), origin="environment")])
    torch.accelerator.set_device_index(local_rank)
    return torch.device(kind, local_rank)


def device_name(device: torch.device) -> str:
    """The product name, as the peak table of `titan.metrics` knows it; the processor's for the CPU."""
    import torch

    if device.type == "cpu":
        return _processor()
    module = torch.get_device_module(device)
    return str(module.get_device_name(device)) if hasattr(module, "get_device_name") else device.type


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except FileNotFoundError:  # not Linux
        pass
    return platform.processor() or platform.machine()


class PeakMemory:
    """The most memory that this process held, in GiB: of the accelerator's allocator since `reset`, or resident memory.

    Resident memory is the process's peak since it started: the system offers no reset.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def gib(self) -> float:
        import torch

        if self._device.type != "cpu":
            return float(torch.accelerator.max_memory_allocated(self._device)) / _GIB
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / _GIB if sys.platform == "darwin" else peak * 1024 / _GIB  # bytes on macOS, KiB on Linux

    def reset(self) -> None:
        import torch

        if self._device.type != "cpu":
            torch.accelerator.reset_peak_memory_stats(self._device)
