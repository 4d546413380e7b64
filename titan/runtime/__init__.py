"""What a process needs around the training loop: world and device, signals, logs, seeds, errors, the files it leaves.

Each function takes the section or the values that it reads. Importing this package loads no torch, so that a worker can
take over its signals before the seconds that torch's import takes; functions that need torch import it themselves.
"""

from titan.runtime.device import PeakMemory, device_count, device_name, device_type, local_device
from titan.runtime.distributed import World, rank_from_environment, set_timeout, setup, shutdown
from titan.runtime.environment import write_environment
from titan.runtime.errors import main_with_errors
from titan.runtime.seeds import agree_on_seed, set_determinism
from titan.runtime.signals import StopRequest
from titan.runtime.status import read_status, write_status

__all__ = [
    "PeakMemory",
    "StopRequest",
    "World",
    "agree_on_seed",
    "device_count",
    "device_name",
    "device_type",
    "local_device",
    "main_with_errors",
    "rank_from_environment",
    "read_status",
    "set_determinism",
    "set_timeout",
    "setup",
    "shutdown",
    "write_environment",
    "write_status",
]
