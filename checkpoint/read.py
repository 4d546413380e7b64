"""Reads pieces from a DCP checkpoint at any layout, after the whole of it has been compared with what this run has.

DCP ignores extra keys and other dtypes, and finds a wrong shape half way through. Here the index is compared first,
over all ranks, and one message names every difference; only then is anything overwritten. Reading needs no
collectives: each rank takes from the files the byte ranges of the stored boxes that overlap with its own, several at
once where the storage is far. Tensors are unpickled with `weights_only`, the index by `metadata`, so no code is run.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from titan.checkpoint.agreement import Agreement
from titan.checkpoint.errors import CheckpointRefused, listed
from titan.checkpoint.folders import manifest_of
from titan.checkpoint.metadata import read_metadata
from titan.checkpoint.pieces import Piece, volume
from titan.checkpoint.storage import Folder

_FRESH = 'add "optimizer" to checkpoint.exclude_from_loading to begin with fresh optimizer state'


def read_pieces(
    folder: Folder, pieces: Sequence[Piece], agreement: Agreement, *, parts: tuple[str, ...], cast: bool
) -> set[str]:
    """Fills the pieces of all ranks from a checkpoint. A collective call.

    Args:
        parts: key prefixes that are read; all keys under them must be wanted by some rank.
        cast: take values of another dtype, converted; else they are refused.

    Returns:
        Differences in dtype that were converted.

    Raises:
        CheckpointRefused: on all ranks, with all differences in keys, shapes and dtypes, before anything was
            overwritten.
    """

    local: list[tuple[Metadata, set[str]]] = []

    def examine() -> tuple[list[str], bytes]:
        metadata = read_metadata(folder, manifest_of(folder).files)
        problems, casts = _differences(metadata, pieces)
        local.append((metadata, casts))
        mine = {one.key for one in pieces}
        # A flag a key, since names of every rank would be megabytes.
        return problems + ([] if cast else sorted(casts)), bytes(key in mine for key in _keys(metadata, parts))

    def judge(answers: list[tuple[list[str], bytes]]) -> None:
        keys = _keys(local[0][0], parts)
        problems = [problem for found, _ in answers for problem in found]
        wanted = [any(flags) for flags in zip(*(flags for _, flags in answers), strict=True)]
        problems += [_extra(key) for key, is_wanted in zip(keys, wanted, strict=True) if not is_wanted]
        if problems:
            raise CheckpointRefused(f"it does not fit this run:\n{listed(problems)}")

    doing = f"loading {folder}"
    agreement.together(doing, examine, judge)
    metadata, casts = local[0]
    agreement.together(doing, lambda: _read(folder, metadata, pieces), lambda _done: None)
    return casts


def _keys(metadata: Metadata, parts: tuple[str, ...]) -> list[str]:
    return sorted(key for key in metadata.state_dict_metadata if key.startswith(parts))


def _extra(key: str) -> str:
    fix = f"; {_FRESH}" if key.startswith("optimizer.") else ""
    return f"{key} is in the checkpoint, but not in this run{fix}"


def _differences(metadata: Metadata, pieces: Sequence[Piece]) -> tuple[list[str], set[str]]:
    problems, casts = [], set()
    for one in pieces:
        entry: Any = metadata.state_dict_metadata.get(one.key)
        if entry is None:
            fix = f"; {_FRESH}" if one.key.startswith("optimizer.") else ""
            problems.append(f"{one.key} {list(one.shape)} is in this run, but not in the checkpoint{fix}")
        elif entry.size != one.shape:
            problems.append(f"{one.key} is {list(entry.size)} in the checkpoint and {list(one.shape)} in this run")
        elif entry.properties.dtype != one.tensor.dtype:
            names = [str(dtype).removeprefix("torch.") for dtype in (entry.properties.dtype, one.tensor.dtype)]
            casts.add(f"{one.key} is {names[0]} in the checkpoint and {names[1]} in this run")
    return problems, casts


def _read(folder: Folder, metadata: Metadata, pieces: Sequence[Piece]) -> None:
    by_key: dict[str, list[Piece]] = {}
    for one in pieces:
        if not one.empty:
            by_key.setdefault(one.key, []).append(one)  # two of one key: both copies of a tied parameter
    items: list[ReadItem] = []
    for key, wanted in by_key.items():
        entry: Any = metadata.state_dict_metadata[key]
        found = create_read_items_for_chunk_list(key, entry, [one.box for one in wanted])
        lost = [item.storage_index for item in found if item.storage_index not in metadata.storage_data]
        covered = sum(math.prod(item.lengths) for item in found)
        if lost or covered != sum(volume(one.tensor.shape) for one in wanted):
            raise CheckpointRefused(f"its index does not cover the whole of {key}")
        items += found
    places: Any = metadata.storage_data
    items.sort(key=lambda item: (places[item.storage_index].relative_path, places[item.storage_index].offset))
    with ThreadPoolExecutor(folder.parallel_reads) as pool:
        for _ in pool.map(lambda item: _fill(folder, places[item.storage_index], item, by_key), items):
            pass  # raises what a reader raised


def _fill(folder: Folder, place: Any, item: ReadItem, by_key: dict[str, list[Piece]]) -> None:
    index = item.dest_index.index
    assert index is not None
    target = by_key[item.dest_index.fqn][index].tensor
    data = folder.read(place.relative_path, place.offset, place.length)
    try:
        stored = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        part = _part(stored, item.storage_offsets, item.lengths)
        _part(target, item.dest_offsets, item.lengths).copy_(part)
    except Exception as error:  # a damaged file raises whatever its bytes happen to mean
        raise CheckpointRefused(
            f"{place.relative_path} is damaged: {type(error).__name__}: {error}; with checkpoint.verify_on_load = true "
            f"an older checkpoint is taken instead"
        ) from error


def _part(tensor: Tensor, offsets: Sequence[int], lengths: Sequence[int]) -> Tensor:
    for dim, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        tensor = tensor.narrow(dim, offset, length)
    return tensor
