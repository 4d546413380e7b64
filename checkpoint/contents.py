"""What one checkpoint holds, tensor by tensor: for `titan checkpoint show`. Reads the index and no tensor."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from titan.checkpoint.errors import CheckpointRefused
from titan.checkpoint.folders import incomplete, manifest_of, read_state
from titan.checkpoint.metadata import read_metadata
from titan.checkpoint.state import MODEL, OPTIMIZER
from titan.checkpoint.storage import Folder


@dataclass(frozen=True)
class Entry:
    """A tensor: key, global shape, dtype, number of boxes that it is stored in, and bytes of its values."""

    key: str
    shape: list[int]
    dtype: str
    boxes: int
    bytes: int


@dataclass(frozen=True)
class Contents:
    """One complete checkpoint.

    Attributes:
        state: state.json.
        files: sizes in bytes.
        tensors: by key.
        totals: tensors, values and bytes under `model.` and `optimizer.`.
    """

    path: str
    state: dict[str, Any]
    files: dict[str, int]
    tensors: list[Entry]
    totals: dict[str, dict[str, int]]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def contents(folder: Folder) -> Contents:
    """Raises CheckpointRefused where it is not complete, is damaged, or is not trusted; runs no code of it."""
    reason = incomplete(folder)
    if reason is not None:
        raise CheckpointRefused(f"{folder} is not a complete checkpoint: {reason}")
    files = manifest_of(folder).files
    metadata = read_metadata(folder, files)
    tensors, totals = [], {}
    for prefix in (MODEL, OPTIMIZER):
        inside = [
            _entry(key, one) for key, one in sorted(metadata.state_dict_metadata.items()) if key.startswith(prefix)
        ]
        tensors += inside
        values = sum(torch.Size(one.shape).numel() for one in inside)
        totals[prefix[:-1]] = {"tensors": len(inside), "values": values, "bytes": sum(one.bytes for one in inside)}
    return Contents(str(folder), read_state(folder), {name: one.size for name, one in files.items()}, tensors, totals)


def _entry(key: str, stored: Any) -> Entry:
    dtype = stored.properties.dtype
    size = stored.size.numel() * dtype.itemsize
    return Entry(key, list(stored.size), str(dtype).removeprefix("torch."), len(stored.chunks), size)
