"""Writes pieces as a DCP checkpoint: one file a rank and `.metadata`, readable by torch's own tools.

DCP's planner removes duplicates (replicas write disjoint shares), its writer makes the files and syncs them. The
calls between them are ours and not `dcp.save`, whose error is a BaseException, whose single-process path warns, and
whose index records the temporary folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from titan.checkpoint.agreement import Agreement
from titan.checkpoint.errors import CheckpointError
from titan.checkpoint.pieces import Piece


class _Planner(DefaultSavePlanner):
    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._pieces = {MetadataIndex(one.key, one.offset): one for one in pieces if not one.empty}

    def create_local_plan(self) -> SavePlan:
        return SavePlan([_item(index, one) for index, one in self._pieces.items()])

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        one = self._pieces[write_item.index]
        return one.tensor.to(one.stored)


def _item(index: MetadataIndex, one: Piece) -> WriteItem:
    # Always a shard, also where it is the whole: several ranks may hold it, and DCP allows one only of the other kind.
    properties = TensorProperties(dtype=one.stored)
    return WriteItem(index, WriteItemType.SHARD, tensor_data=TensorWriteData(one.box, properties, one.shape))


class _Writer(FileSystemWriter):
    def storage_meta(self) -> StorageMeta:
        return StorageMeta(save_id=self.save_id)  # without the folder, whose name is a temporary one


def write_pieces(folder: Path, pieces: Sequence[Piece], agreement: Agreement) -> None:
    """Writes what all ranks hold into an existing, empty folder, synced to storage. A collective call.

    Raises:
        CheckpointError: on all ranks, if a rank could not write or rank 0 does not see the whole of every rank's file.
    """
    planner, writer = _Planner(pieces), _Writer(folder, sync_files=True)
    writer.set_up_storage_writer(agreement.rank == 0, rank=agreement.rank, use_collectives=True)
    index: list[Metadata] = []

    def plan(plans: list[SavePlan]) -> list[SavePlan]:
        shares, metadata = planner.create_global_plan(plans)
        index.append(metadata)
        return writer.prepare_global_plan(shares)

    def write() -> list[WriteResult]:
        results = writer.write_data(planner.finish_plan(mine), planner)
        results.wait()
        written: list[WriteResult] = results.value()
        sync(folder)  # of this node
        return written

    def finish(results: list[list[WriteResult]]) -> None:
        _check_sizes(folder, results)
        writer.finish(index[0], results)

    mine = agreement.scatter(f"planning {folder}", planner.create_local_plan, plan)
    agreement.together(f"writing {folder}", write, finish)


def _check_sizes(folder: Path, results: list[list[WriteResult]]) -> None:
    sizes: dict[str, tuple[int, int]] = {}
    for rank, written in enumerate(results):
        for result in written:
            place: Any = result.storage_data
            end = place.offset + place.length
            sizes[place.relative_path] = (max(end, sizes.get(place.relative_path, (0, 0))[0]), rank)
    for name, (size, rank) in sizes.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(
                f"rank 0 does not see {name}, which rank {rank} wrote: checkpoint.folder must be on storage that all "
                f"nodes share"
            )
        if path.stat().st_size != size:
            raise CheckpointError(f"{name} has {path.stat().st_size} bytes, rank {rank} wrote {size}")


def sync(path: Path) -> None:
    """Flushes a file, or the names in a folder, to storage."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
