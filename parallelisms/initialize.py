"""Initial weights that no layout can change: each value is a function of (seed, canonical FQN, position in the full tensor).

Each rank draws just its own slice, from a counter-based generator (Philox 4x64-10; Salmon et al., SC 2011) that skips to any position at
once. A value takes exactly one 64-bit word: a uniform number in (0, 1) of 53 bits, through the inverse of the normal distribution cut at
three standard deviations. Drawn in float64 on the CPU in bounded chunks and cast last: no full tensor exists on the way, and every
device, dtype and degree gives the same bits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

# What DTensor itself uses for its checkpoints; there is no public way to an offset.
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from titan.models.registry import InitRule
from titan.parallelisms.parameters import NamedParameter

CHUNK = 1 << 20
"""Values drawn at a time: 8 MiB of float64."""
TRUNCATION = 3.0
"""Where the normal is cut, in standard deviations (before the cut)."""
_WORDS_A_BLOCK = 4  # Philox 4x64 makes four words a counter value


def local_region(tensor: Tensor) -> tuple[slice, ...]:
    """The box of the full tensor that this rank holds; all of it for a plain tensor. Empty shards are empty slices."""
    if not isinstance(tensor, DTensor):
        return tuple(slice(0, size) for size in tensor.shape)
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))


def words(seed: int, fqn: str, start: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Words number start .. start + count - 1 of the stream of one parameter."""
    digest = hashlib.blake2b(f"{seed}/{fqn}".encode(), digest_size=16).digest()
    skipped = start % _WORDS_A_BLOCK
    generator = np.random.Philox(key=int.from_bytes(digest, "little")).advance(start // _WORDS_A_BLOCK)
    raw: np.ndarray[tuple[int], np.dtype[np.uint64]] = generator.random_raw(skipped + count)
    return raw[skipped:]


def truncated_normal(raw: np.ndarray[tuple[int], np.dtype[np.uint64]], std: float) -> Tensor:
    """One value a word, float64: a normal of standard deviation `std` before it is cut at three of them."""
    uniform = torch.from_numpy(((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)  # in (0, 1)
    below = 0.5 * (1.0 + math.erf(-TRUNCATION / math.sqrt(2.0)))  # probability under the lower cut
    return torch.special.ndtri(uniform.mul_(1.0 - 2.0 * below).add_(below)).mul_(std)


def _row_chunks(region: tuple[slice, ...], shape: torch.Size, chunk: int) -> Iterator[tuple[slice, int, int]]:
    """Cuts a box into runs of rows: (local rows, first word, number of words), each contiguous in the full tensor.

    A box over whole rows is one run after another; a box of some columns (row-wise tensor parallelism) draws the words from its
    first column in its first row to its last column in its last row, at most a chunk or one row at a time.
    """
    width = math.prod(shape[1:])
    first, last = _columns(region, shape)
    rows = region[0].stop - region[0].start
    step = max(1, chunk // max(1, width))
    for begin in range(0, rows, step):
        end = min(rows, begin + step)
        start = (region[0].start + begin) * width + first
        yield slice(begin, end), start, (end - 1 - begin) * width + last - first


def _columns(region: tuple[slice, ...], shape: torch.Size) -> tuple[int, int]:
    """Range of a box within the flattened rows; only dimension 1 may be cut, as tensor parallelism does."""
    if len(shape) < 2:
        return 0, 1
    if any(cut != slice(0, size) for cut, size in zip(region[2:], shape[2:], strict=True)):
        raise ValueError(f"a shard of {tuple(shape)} is cut beyond dimension 1 ({region}): no parallelism here does that")
    inner = math.prod(shape[2:])
    return region[1].start * inner, region[1].stop * inner


@torch.no_grad()
def draw_(local: Tensor, region: tuple[slice, ...], shape: torch.Size, *, fqn: str, std: float, seed: int, chunk: int = CHUNK) -> None:
    """Fills a local shard (the box `region` of a tensor of `shape`) in place."""
    if local.numel() == 0:
        return
    width = math.prod(shape[1:])
    first, last = _columns(region, shape)
    flat = local.view(local.shape[0], -1) if local.dim() else local.view(1, 1)
    for rows, start, count in _row_chunks(region, shape, chunk):
        values = truncated_normal(words(seed, fqn, start, count), std)
        # The run ends with the last column of its last row: strides of the full tensor pick the columns of each row.
        picked = values.as_strided((rows.stop - rows.start, last - first), (width, 1))
        flat[rows].copy_(picked)


@torch.no_grad()
def initialize(parameters: Sequence[NamedParameter], rule: Callable[[str], InitRule], seed: int) -> None:
    """Fills every parameter in place by its rule; no communication."""
    for named in parameters:
        how = rule(named.fqn)
        local = _local(named.parameter)
        match how.kind:
            case "normal":
                region, shape = local_region(named.parameter), named.parameter.shape
                draw_(local, region, shape, fqn=named.fqn, std=how.std, seed=seed)
            case "ones":
                local.fill_(1.0)
            case "zeros":
                local.zero_()


def _local(parameter: nn.Parameter) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter.detach()
