"""Reads DCP's `.metadata` with the classes that `index` allows, and no others."""

from __future__ import annotations

import io
import pathlib
from collections.abc import Collection
from importlib import import_module
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from titan.checkpoint.errors import CheckpointRefused
from titan.checkpoint.index import CLASSES, PATHS, Unpickler, check
from titan.checkpoint.manifest import METADATA
from titan.checkpoint.storage import Where, at


class _Unpickler(Unpickler):
    def known(self, module: str, name: str) -> Any:
        if (module, name) in PATHS:
            return pathlib.PurePosixPath
        if (module, name) in CLASSES:
            return getattr(import_module(module), name)
        dtype = getattr(torch, name, None)
        return dtype if isinstance(dtype, torch.dtype) else None


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
    for index, info in metadata.storage_data.items():
        if not isinstance(info, _StorageInfo) or not isinstance(index, MetadataIndex):
            raise CheckpointRefused(f"the place of {index} is not one")
    check(
        ((key, isinstance(one, TensorStorageMetadata)) for key, one in metadata.state_dict_metadata.items()),
        ((index.fqn, info.relative_path, info.transform_descriptors) for index, info in metadata.storage_data.items()),
        names,
    )
