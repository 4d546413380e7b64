"""Writes pieces as a DCP checkpoint: one file a rank and `.metadata`, readable by torch's own tools.

DCP's planner removes duplicates (replicas write disjoint shares), its writer makes the files; checksums are computed
on the way through, and each file is synced. The calls between them are ours and not `dcp.save`, whose error is a
BaseException, whose single-process path warns, and whose index records the temporary folder.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from titan.checkpoint.agreement import Agreement
from titan.checkpoint.errors import CheckpointError
from titan.checkpoint.manifest import METADATA, Checksum, Entry
from titan.checkpoint.pieces import Piece
from titan.checkpoint.storage import Folder, Listing
from titan.checkpoint.storage_local import LocalFolder, sync


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


class _Summed:
    """A file being written; its checksum is computed on the way. What DCP calls, and no more."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.checksum = Checksum()

    def write(self, data: bytes | bytearray | memoryview) -> int:
        self.checksum.update(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self.checksum.size

    def flush(self) -> None:
        self._file.flush()

    close = flush


class _Files(FileSystem):
    """Where DCP's writer makes its files: on storage when they end, with an entry for the manifest each."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.entries: dict[str, Entry] = {}

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return suffix

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        name = os.fspath(path)
        with self._folder.create(name) as file:
            summed = _Summed(file)
            yield summed
        self.entries[name] = summed.checksum.entry()


def write_pieces(folder: Folder, pieces: Sequence[Piece], agreement: Agreement) -> dict[str, Entry]:
    """Writes what all ranks hold into an existing, empty folder, safe on storage. A collective call.

    Returns:
        On rank 0 the files written by all ranks, for the manifest; nothing on the others.

    Raises:
        CheckpointError: on all ranks, if a rank could not write or rank 0 does not see the whole of every rank's file.
    """
    planner, writer = _Planner(pieces), FileSystemWriter("", sync_files=False)
    writer.fs = files = _Files(folder)
    index: list[Metadata] = []
    entries: dict[str, Entry] = {}

    def plan(plans: list[SavePlan]) -> list[SavePlan]:
        shares, metadata = planner.create_global_plan(plans)
        index.append(metadata)
        return writer.prepare_global_plan(shares)

    def write() -> tuple[list[WriteResult], dict[str, Entry]]:
        results = writer.write_data(planner.finish_plan(mine), planner)
        results.wait()
        if isinstance(folder, LocalFolder):
            sync(folder.path)  # of this node
        return results.value(), files.entries

    def finish(written: list[tuple[list[WriteResult], dict[str, Entry]]]) -> None:
        listing = folder.listing()
        for rank, (_, own) in enumerate(written):
            _check_sizes(listing, own, rank)
            entries.update(own)
        with files.create_stream(METADATA, "wb") as stream:
            stream.write(_index(index[0], [result for results, _ in written for result in results]))
        entries.update(files.entries)

    mine = agreement.scatter(f"planning {folder}", planner.create_local_plan, plan)
    agreement.together(f"writing {folder}", write, finish)
    return entries


def _index(metadata: Metadata, results: Sequence[WriteResult]) -> bytes:
    """Content of `.metadata`, without the folder that was written to, whose name is a temporary one."""
    metadata.version = CURRENT_DCP_VERSION
    metadata.storage_data = {result.index: result.storage_data for result in results}
    metadata.storage_meta = StorageMeta()
    return pickle.dumps(metadata)


def _check_sizes(listing: Listing | None, entries: Mapping[str, Entry], rank: int) -> None:
    for name, entry in entries.items():
        if listing is None or name not in listing.files:
            raise CheckpointError(
                f"rank 0 does not see {name}, which rank {rank} wrote: checkpoint.folder must be on storage that all "
                f"nodes share"
            )
        if listing.files[name] != entry.size:
            raise CheckpointError(f"{name} has {listing.files[name]} bytes, rank {rank} wrote {entry.size}")
