"""A piece: the part of one global tensor that this rank holds, as a box in it. All that saving and loading know of a
layout.

torch 2.13 computes offsets right for what FSDP2 over TP makes of dimension 0 (chunks of chunks, also uneven: 251
rows on 2 x 2, or 1, 2, 3 rows on 4 ranks; measured and tested), so this relies on it, and leaves out ranks that
hold nothing: an empty box at the offset of a full one could take its place when duplicates are removed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from torch.distributed.tensor import DTensor, Partial

from titan.parallelisms.shards import local_region


@dataclass(frozen=True)
class Piece:
    """A box of a global tensor, with the memory that it is saved from or loaded into.

    Attributes:
        key: `model.<fqn>` or `optimizer.<fqn>.<name>`.
        shape: of the global tensor.
        offset: of the box in it, one number a dimension.
        tensor: the box itself, a plain tensor that shares memory with the parameter or state.
        stored: dtype in the file.
    """

    key: str
    shape: torch.Size
    offset: torch.Size
    tensor: Tensor
    stored: torch.dtype

    @property
    def empty(self) -> bool:
        return self.tensor.numel() == 0

    @property
    def box(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(self.offset, self.tensor.shape)


def piece(key: str, tensor: Tensor) -> Piece:
    """The piece of a DTensor, or the whole of a plain tensor (the same on all ranks that hold it).

    Raises:
        ValueError: the tensor is a pending sum, which has no value to save; or its layout is not one box a rank.
    """
    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        return Piece(key, tensor.shape, torch.Size([0] * tensor.dim()), tensor, tensor.dtype)
    if any(isinstance(placement, Partial) for placement in tensor.placements):
        raise ValueError(f"{key} is a partial sum over ranks ({tensor.placements}): reduce it before saving")
    local = tensor.to_local()
    try:
        offset = [part.start for part in local_region(tensor)]
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    return Piece(key, tensor.shape, torch.Size(offset), local, local.dtype)


def volume(sizes: torch.Size) -> int:
    """Number of values in a box; 1 for a scalar."""
    return math.prod(sizes)
