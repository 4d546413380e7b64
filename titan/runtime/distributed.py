"""The process group of a run: who this process is, and how the processes meet.

One process has no group and needs no rendezvous, whoever started it: collectives over one rank are what a plain run
does not pay for. Several read the variables that torchrun, our launcher and most schedulers set. A half-set environment
is refused with what to run, since waiting for a peer that nobody starts looks like a hang.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from titan.config.problems import ConfigError, Problem

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from titan.config.schema_run import Comm

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_HOW = "start with ./train.sh or torchrun, or unset {} for a run of one process."


@dataclass(frozen=True)
class World:
    """This process among those of the run.

    Attributes:
        rank: 0 <= rank < world_size; rank 0 speaks for the run.
        local_rank: the rank among the processes of its machine.
        world_size: number of processes.
        device: what this process computes on.
    """

    rank: int
    local_rank: int
    world_size: int
    device: torch.device


def rank_from_environment(environment: Mapping[str, str] | None = None) -> tuple[int, int, int]:
    """(rank, local rank, world size) as the launcher set them; (0, 0, 1) where none did.

    Raises ConfigError for variables that are missing beside others, or are no numbers in range.
    """
    given = os.environ if environment is None else environment
    names = [name for name in _NEEDED[:2] if given.get(name)]
    if not names:
        return 0, 0, 1
    problems: list[Problem] = []
    rank, local_rank, world_size = (
        _number(given, name, problems)
        for name in ("RANK", "LOCAL_RANK" if given.get("LOCAL_RANK") else "RANK", "WORLD_SIZE")
    )
    needed = _NEEDED if world_size > 1 else _NEEDED[:2]
    for name in needed:
        if not given.get(name):
            text = f"is not set, but {names[0]} = {given[names[0]]} is; {_HOW.format(' and '.join(names))}"
            problems.append(Problem(name, text, origin="environment"))
    if not problems and not rank < world_size:
        text = f"must be less than WORLD_SIZE ({world_size}); {_HOW.format('both')}"
        problems.append(Problem("RANK", text, value=str(rank), origin="environment"))
    if problems:
        raise ConfigError(problems)
    return rank, local_rank, world_size


def _number(given: Mapping[str, str], name: str, problems: list[Problem]) -> int:
    text = given.get(name, "")
    if text.isdecimal() and (int(text) > 0 or name != "WORLD_SIZE"):
        return int(text)
    if text:
        problems.append(Problem(name, "must be a whole number.", value=text, origin="environment"))
    return 0


def setup(comm: Comm, *, cpu_collectives: bool = False) -> World:
    """Joins the process group of the run, on the backend that torch names for the device (gloo, nccl, xccl).

    Args:
        comm: `init_timeout_seconds` bounds the meeting and, until `set_timeout`, each collective.
        cpu_collectives: also run collectives on CPU tensors where the device is an accelerator (CPU offload needs it).

    Raises ConfigError for an environment that cannot work, `torch.distributed.DistError` where peers do not come.
    """
    import torch.distributed as dist

    from titan.runtime.allocator import keep_freed_memory
    from titan.runtime.device import local_device

    rank, local_rank, world_size = rank_from_environment()
    _check_torchcomms()
    device = local_device(local_rank)
    if device.type == "cpu":
        keep_freed_memory()
    if world_size > 1 and not dist.is_initialized():
        backend = dist.get_default_backend_for_device(device)
        accelerated = device.type != "cpu"
        dist.init_process_group(
            f"cpu:gloo,{device.type}:{backend}" if cpu_collectives and accelerated else backend,
            timeout=timedelta(seconds=comm.init_timeout_seconds),
            rank=rank,
            world_size=world_size,
            # Bound to its device, NCCL connects here and not in the first collective, and a barrier needs no guess.
            device_id=device if accelerated else None,
        )
    return World(rank, local_rank, world_size, device)


def set_timeout(seconds: int, groups: Iterable[dist.ProcessGroup] = ()) -> None:
    """The timeout of collectives from here on, of the default group and of `groups`; for after the first step.

    The barrier comes first: a slow peer, still compiling, must not meet the short timeout. Nothing without a group.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        return
    dist.barrier()
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    default = dist.group.WORLD
    for group in [*([default] if default is not None else []), *groups]:
        group.set_timeout(timedelta(seconds=seconds))


def shutdown(world: World) -> None:
    """Leaves the process group after the last collective of a run that went well; nothing for one process.

    A run that failed does not call it: its peers may be gone, and the exit of the process says enough.
    """
    import torch.distributed as dist

    if world.world_size > 1 and dist.is_initialized():
        dist.destroy_process_group()


def _check_torchcomms() -> None:
    """torch falls back to its own backends in silence where torchcomms is asked for and has none (PyPI's 0.0.1)."""
    value = os.environ.get("TORCH_DISTRIBUTED_USE_TORCHCOMMS", "")
    if value.lower() not in ("1", "true", "yes", "on", "y"):
        return
    try:
        from torchcomms import new_comm  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError as error:
        text = f"the installed torchcomms has no communication backend ({error}); install one that does, or unset it."
        problem = Problem("TORCH_DISTRIBUTED_USE_TORCHCOMMS", text, value=value, origin="environment")
        raise ConfigError([problem]) from None
