"""Reads every byte of a checkpoint and compares it with the manifest: by `titan checkpoint verify`, and before loading
with checkpoint.verify_on_load.

The unit is a block of 16 MiB, so that damage has a place and the work can be cut evenly, over threads here and over
ranks in `CheckpointManager`. Hashing is faster than storage (27 GiB/s a core against the few of a good disk), and
reading and hashing both let other threads run. No torch here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import xxhash

from titan.checkpoint.folders import is_step, manifest_of, step_name, wrong_size
from titan.checkpoint.index import scan
from titan.checkpoint.manifest import BLOCK, MANIFEST, METADATA, Damaged, Manifest
from titan.checkpoint.storage import Folder


@dataclass(frozen=True)
class Block:
    """A part of a file and its checksum, hexadecimal xxh3_128."""

    name: str
    start: int
    length: int
    checksum: str


@dataclass(frozen=True)
class Verified:
    """What `verify` found: one line for each problem, none for a checkpoint that is whole; what it compared; whether
    there were checksums.
    """

    problems: list[str]
    files: int = 0
    bytes: int = 0
    checksums: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def blocks_of(manifest: Manifest) -> list[Block]:
    """All blocks of all files, in order; none in format 1, which has no checksums."""
    return [
        Block(name, number * BLOCK, min(BLOCK, entry.size - number * BLOCK), checksum)
        for name, entry in sorted(manifest.files.items())
        for number, checksum in enumerate(entry.sums or ())
    ]


def damaged_blocks(folder: Folder, blocks: Sequence[Block], threads: int = 1) -> list[str]:
    """Reads the blocks; one line for each that is not what was written."""
    with ThreadPoolExecutor(threads) as pool:
        return [line for line in pool.map(lambda block: _compare(folder, block), blocks) if line]


def verify(folder: Folder) -> Verified:
    """Reads all of a checkpoint: damaged, cut, missing and foreign files, an index that must not be loaded."""
    try:
        manifest, listing = manifest_of(folder), folder.listing()
    except FileNotFoundError:
        return Verified([f"{MANIFEST} is missing: the checkpoint was never finished, or has lost it"])
    except Damaged as error:
        return Verified([f"{MANIFEST} {error}; without it the other files cannot be judged"])
    assert listing is not None
    found, right = [], []
    if is_step(folder.name) and folder.name != step_name(manifest.step):
        found.append(f"{MANIFEST} is that of step {manifest.step}")
    for name, entry in sorted(manifest.files.items()):
        problem = wrong_size(listing, name, entry)
        if problem is None:
            right.append(name)
        else:
            found.append(f"{name} {problem}")
    foreign = {*listing.files, *listing.links, *listing.folders} - {MANIFEST, *manifest.files}
    found += [f"{name} is not in the manifest" for name in sorted(foreign)]
    wanted = [block for block in blocks_of(manifest) if block.name in right]
    found += damaged_blocks(folder, wanted, max(folder.parallel_reads, os.cpu_count() or 1))
    if METADATA in right:
        problem = scan(folder.read(METADATA), manifest.files)
        found += [f"{METADATA} {problem}"] if problem else []
    size = sum(entry.size for entry in manifest.files.values())
    return Verified(found, len(manifest.files), size, checksums=manifest.format > 1)


def _compare(folder: Folder, block: Block) -> str | None:
    data = folder.read(block.name, block.start, block.length)
    if len(data) == block.length and xxhash.xxh3_128_hexdigest(data) == block.checksum:
        return None
    last = block.start + block.length - 1
    return f"{block.name} differs from its checksum somewhere in bytes {block.start} to {last}"
