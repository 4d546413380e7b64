"""A rank's share of a tensor, as a plain tensor and as a box of the whole: the one place that asks DTensor where a
shard lies. Initial weights, the norm, tied gradients and checkpoints all read it here.
"""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor

# What torch's own DCP calls for a DTensor; there is no public way to an offset.
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def local_tensor(tensor: Tensor) -> Tensor:
    """The plain tensor that this rank holds, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def local_region(tensor: Tensor) -> tuple[slice, ...]:
    """The box of the full tensor that this rank holds: one slice a dimension, empty for an empty shard; all of it for
    a plain tensor.

    Right for FSDP over tensor parallelism on one dimension (tp cuts first, FSDP cuts the piece), also with uneven and
    empty shards.

    Raises:
        ValueError: the local shape is not what the placements say.
    """
    if not isinstance(tensor, DTensor):
        return tuple(slice(0, size) for size in tensor.shape)
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    held = tuple(tensor.to_local().shape)
    if held != tuple(sizes):
        raise ValueError(f"a local shard has shape {held}, its placements {tensor.placements} say {tuple(sizes)}")
    return tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))
