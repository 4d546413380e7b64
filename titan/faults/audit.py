"""Replica audit: what several ranks must hold alike is compared bit for bit, and a difference named.

What must agree follows from where a tensor lies, not from a list of axes: two ranks that hold the same box of the same
tensor must hold the same bits there. That covers replicas of data parallelism, tensors that tp leaves whole, and both
copies of a tied weight across stages; weights, gradients' norm and optimizer state alike. Counters, learning rate, seed
and the state of the random generators must agree on all ranks.

A tensor's hash is the sum of its bits as integers, each times an odd number that depends on its place, modulo 2^64: one
changed value always changes it. Computed where the tensor is; rank 0 compares and tells.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from titan.parallelisms.parameters import NamedParameter
from titan.parallelisms.shards import local_region, local_tensor

Entries = dict[str, list[int | float | str]]
"""Name and box to the values that a rank holds there: one, or two where it has both copies of a tied weight."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 1 << 24
_SPREAD = 2 * 0x2C28FD7A26B5E4A7  # even, so that place * _SPREAD + 1 is odd
_SHOWN = 8


class ReplicasDiffer(RuntimeError):
    """Ranks that must hold the same do not; raised on every rank. Weights since the last audit are suspect."""

    exit_code = 1


@torch.no_grad()
def tensor_hash(tensor: Tensor) -> Tensor:
    """0-dim int64 on the tensor's device, of the bits and their places; the dtype is not in it."""
    bits = tensor.detach().contiguous().view(-1).view(_INTEGERS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for begin in range(0, bits.numel(), _CHUNK):  # int64 copies of a whole embedding would not fit beside it
        piece = bits[begin : begin + _CHUNK].to(torch.int64)
        places = torch.arange(begin, begin + piece.numel(), device=tensor.device)
        total += (piece * places.mul_(_SPREAD).add_(1)).sum()  # integers wrap around
    return total


def entries(
    parameters: Sequence[NamedParameter], optimizer: torch.optim.Optimizer, scalars: Mapping[str, float]
) -> Entries:
    """What this rank must share with others: name and box to hash, name to value.

    Args:
        scalars: counters and the like that are the same on all ranks.
    """
    found: Entries = {name: [value] for name, value in scalars.items()}

    def add(name: str, tensor: Tensor) -> None:
        box = ", ".join(f"{one.start}:{one.stop}" for one in local_region(tensor))
        found.setdefault(f"{name} [{box}]", []).append(int(tensor_hash(local_tensor(tensor)).item()))

    for named in parameters:
        add(named.fqn, named.parameter)
        for name, value in optimizer.state.get(named.parameter, {}).items():
            if isinstance(value, Tensor):
                add(f"optimizer {name} of {named.fqn}", value)
    found["random generator of the CPU"] = [_digest(torch.get_rng_state())]
    if torch.accelerator.is_available():
        module = torch.get_device_module(torch.accelerator.current_accelerator())
        found["random generator of the device"] = [_digest(module.get_rng_state())]
    return found


def _digest(state: Tensor) -> str:
    return hashlib.sha256(state.cpu().numpy().tobytes()).hexdigest()


def differences(of_ranks: Sequence[Entries]) -> list[str]:
    """One sentence an entry that ranks hold differently: the entry and the ranks in the minority."""
    holders: dict[str, list[tuple[int, Any]]] = {}
    for rank, held in enumerate(of_ranks):
        for key, values in held.items():
            holders.setdefault(key, []).extend((rank, value) for value in values)
    said = []
    for key, pairs in holders.items():
        counts = Counter(value for _rank, value in pairs).most_common()
        if len(counts) == 1:
            continue
        common, most = counts[0]
        others = sorted({rank for rank, value in pairs if value != common})
        if most == counts[1][1]:
            said.append(f"{key} is not the same on ranks {_listed(sorted({rank for rank, _value in pairs}))}")
        else:
            same = sorted({rank for rank, value in pairs if value == common})
            said.append(f"{key} on rank {_listed(others)} is not that of ranks {_listed(same)}")
    return said


def _listed(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
    return ", ".join(map(str, ranks[:_SHOWN])) + more


def audit(step: int, mine: Entries) -> None:
    """Compares the entries of all ranks. A collective call.

    Raises:
        ReplicasDiffer: on every rank, naming what differs and where.
    """
    if not dist.is_initialized():
        return
    gathered: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(mine, gathered, dst=0)
    verdict = [differences(gathered) if gathered is not None else []]
    dist.broadcast_object_list(verdict, src=0)
    if verdict[0]:
        more = f"; and {len(verdict[0]) - _SHOWN} more" if len(verdict[0]) > _SHOWN else ""
        raise ReplicasDiffer(
            f"step {step}: replicas differ: {'; '.join(verdict[0][:_SHOWN])}{more}. A defective device or a missed "
            "reduction: go back to a checkpoint from before the last audit that passed (checkpoint.load_step)."
        )
