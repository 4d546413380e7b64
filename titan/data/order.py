"""The order of rows in an epoch: a permutation of [0, size) that is a formula, not a table.

A balanced Feistel network (Luby & Rackoff, 1988) over the next even number of bits, with cycle walking (Black &
Rogaway, 2002, "Ciphers with arbitrary finite domains") to stay below `size`: each output is computed by itself, so that
going to any row of any epoch costs nothing and no memory, whatever the size of the data. The domain is at most four
times `size`, so that a walk takes four rounds on average at most. The keys are a function of (seed, epoch): every epoch
has its own order, on every machine the same.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8
"""Four are proven to look random for large domains; small ones gain from more."""


def round_keys(seed: int, epoch: int) -> NDArray[np.uint64]:
    """(ROUNDS,) keys of one epoch."""
    digest = hashlib.blake2b(f"titan rows {seed} {epoch}".encode(), digest_size=8 * ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def permute(index: NDArray[np.int64], size: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Where each index of [0, size) goes; a bijection of [0, size) for any keys. `index` is one-dimensional."""
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    walked = _network(index.astype(np.uint64), half, keys)
    while (outside := walked >= size).any():
        walked[outside] = _network(walked[outside], half, keys)
    return walked.astype(np.int64)


def _network(value: NDArray[np.uint64], half: np.uint64, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = value >> half, value & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << half) | right


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64 (Steele, Lea & Flood, 2014): every input bit reaches every output bit."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
