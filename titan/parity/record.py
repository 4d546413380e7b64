"""What the oracle computed, on disk: initial weights, gradients of each step, last weights.

A rank reads just the boxes that it holds, through a memory map (safetensors), and hands back two sums a shard: so no
process gathers a tensor, and nothing of DTensor's own gathering is trusted. Boxes of one parameter are equal (replicas)
or apart, which is how the verdict sees that every element was compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from titan.parity.verdict import Box, Compared

INITIAL, LAST = "initial", "last"


def gradients(step: int) -> str:
    """Name of the gradients of a step, from 1."""
    return f"gradients-{step}"


@dataclass(frozen=True)
class Record:
    """The folder of one oracle run."""

    folder: Path

    def write(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        save_file({fqn: tensor.detach().cpu().contiguous() for fqn, tensor in tensors.items()}, self._path(name))

    def read(self, name: str) -> dict[str, Tensor]:
        """All tensors, on the CPU."""
        with safe_open(self._path(name), framework="pt") as file:
            return {fqn: file.get_tensor(fqn) for fqn in file.keys()}  # noqa: SIM118 (no mapping)

    @torch.no_grad()
    def compare(self, name: str, shards: Iterable[tuple[str, torch.Size, tuple[slice, ...], Tensor]]) -> list[Compared]:
        """Shards, each (FQN, whole shape, box, values), against the oracle's. Raises ValueError for a parameter that
        the oracle does not have, or that has another shape there."""
        found = []
        with safe_open(self._path(name), framework="pt") as file:
            known = set(file.keys())
            for fqn, shape, box, values in shards:
                if fqn not in known:
                    raise ValueError(f"{fqn}: the model on one process has no such parameter")
                reference = file.get_slice(fqn)
                if list(reference.get_shape()) != list(shape):
                    raise ValueError(f"{fqn} has shape {list(shape)}, {reference.get_shape()} on one process")
                if values.numel():
                    wanted = reference[box] if box else file.get_tensor(fqn)
                    place = tuple((part.start, part.stop) for part in box)
                    found.append(_compared(fqn, tuple(shape), place, values.detach().cpu(), wanted))
        return found

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"


def _compared(fqn: str, shape: tuple[int, ...], box: Box, values: Tensor, wanted: Tensor) -> Compared:
    identical = values.dtype == wanted.dtype and torch.equal(values, wanted)
    reference = wanted.double().square().sum()
    difference = (values.double() - wanted.double()).square().sum()
    return Compared(fqn, shape, box, _finite(difference), _finite(reference), identical)


def _finite(value: Tensor) -> float:
    return value.item() if value.isfinite() else float("inf")
