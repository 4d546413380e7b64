"""Reads DCP's `.metadata` without trusting it. It is a pickle, and a pickle may name any function to be called with
any argument.

This unpickler knows the classes that DCP writes and refuses all others by name, before anything of them runs. What
it gives is then checked: tensors only (DCP reads other entries with a plain `torch.load`, which runs code), and
file names that stay in the folder.
"""

from __future__ import annotations

import io
import pathlib
import pickle
from collections.abc import Collection
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.serialization import _get_layout

from titan.checkpoint.errors import CheckpointRefused
from titan.checkpoint.manifest import METADATA, is_plain_name
from titan.checkpoint.storage import Where, at

_CLASSES = (
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    TensorProperties,
    _MEM_FORMAT_ENCODING,
    _StorageInfo,
)
_ALLOWED: dict[tuple[str, str], Any] = {
    **{(one.__module__, one.__qualname__): one for one in _CLASSES},
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _get_layout,
    # The folder that DCP itself wrote to. Never used; pure paths, so that it can be read on any system.
    **{
        (module, name): pathlib.PurePosixPath
        for module in ("pathlib", "pathlib._local")
        for name in ("PosixPath", "PurePosixPath")
    },
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = _ALLOWED.get((module, name))
        if known is not None:
            return known
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise CheckpointRefused(
            f"it names {module}.{name}, which is not one of the classes of a checkpoint's index and could run code; "
            f"nothing was run"
        )


def read_metadata(where: Where, names: Collection[str] | None = None) -> Metadata:
    """The index of a checkpoint: shape, dtype and boxes of each tensor, and where the boxes are.

    Args:
        names: the files of the checkpoint, if it is to be asked that the index names no others.

    Raises:
        CheckpointRefused: the file is damaged, names a class that does not belong there, has an entry that is not a
            tensor, or points outside of the folder.
    """
    folder = at(where)
    path = folder / METADATA
    try:
        metadata = _Unpickler(io.BytesIO(folder.read(METADATA))).load()
        _check(metadata, names)
    except CheckpointRefused as error:
        raise CheckpointRefused(f"{path} is refused: {error}") from None
    except OSError:
        raise
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to mean
        raise CheckpointRefused(f"{path} is damaged: {type(error).__name__}: {error}") from error
    assert isinstance(metadata, Metadata)
    return metadata


def _check(metadata: Any, names: Collection[str] | None) -> None:
    if not isinstance(metadata, Metadata):
        raise CheckpointRefused(f"it holds a {type(metadata).__name__}, not the index of a checkpoint")
    for key, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise CheckpointRefused(f"{key} is not a tensor: such an entry is a pickle that would run on loading")
    for index, info in metadata.storage_data.items():
        if not isinstance(info, _StorageInfo) or not isinstance(index, MetadataIndex):
            raise CheckpointRefused(f"the place of {index} is not one")
        if not is_plain_name(info.relative_path):
            raise CheckpointRefused(f"{index.fqn} points to {info.relative_path!r}, outside of the folder")
        if names is not None and info.relative_path not in names:
            raise CheckpointRefused(f"{index.fqn} points to {info.relative_path}, which is not in the manifest")
        if info.transform_descriptors:
            raise CheckpointRefused(
                f"{index.fqn} is stored with transforms ({info.transform_descriptors}), which are not read"
            )
