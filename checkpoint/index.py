"""What DCP's `.metadata` may hold. It is a pickle, and a pickle may name any function to be called with any argument.

Only the classes of this table are known to the unpicklers, all other names are refused before anything of them runs.
What comes out is checked here as well: tensors only (DCP reads other entries with a plain `torch.load`, which runs
code), in files of the checkpoint. This file needs no torch: `scan` puts empty classes in place of the real ones, for
`titan checkpoint verify`; `metadata` reads the index with the real ones.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Collection, Iterable
from typing import Any

from titan.checkpoint.errors import CheckpointRefused
from titan.checkpoint.manifest import is_plain_name

_DCP = "torch.distributed.checkpoint.metadata"
CLASSES = {
    *(
        (_DCP, name)
        for name in (
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "TensorProperties",
            "_MEM_FORMAT_ENCODING",
        )
    ),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
}
PATHS = {(module, name) for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "PurePosixPath")}
"""The folder that DCP itself wrote to. Never used, and read as pure paths."""
_DTYPE = re.compile(r"(b?float|u?int|complex)[0-9]\w*|bool")


class Unpickler(pickle.Unpickler):
    """Asks for the names of the table what they stand for; all others are refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in CLASSES | PATHS or (module == "torch" and _DTYPE.fullmatch(name)):
            known = self.known(module, name)
            if known is not None:
                return known
        raise CheckpointRefused(
            f"it names {module}.{name}, which is not one of the classes of a checkpoint's index and could run code; "
            f"nothing was run"
        )

    def known(self, module: str, name: str) -> Any:
        """What stands for this name of the table; None refuses it as well, and here each."""
        return None


def check(
    entries: Iterable[tuple[str, bool]], places: Iterable[tuple[str, Any, Any]], names: Collection[str] | None
) -> None:
    """Refuses what may not be loaded.

    Args:
        entries: each key, and whether it is a tensor.
        places: of each stored box the tensor, the file and the transforms.
        names: the files of the manifest, or None where there is none.

    Raises:
        CheckpointRefused: for the first thing that may not be.
    """
    for key, is_tensor in entries:
        if not is_tensor:
            raise CheckpointRefused(f"{key} is not a tensor: such an entry is a pickle that would run on loading")
    for fqn, path, transforms in places:
        if not is_plain_name(path):
            raise CheckpointRefused(f"{fqn} points to {path!r}, outside of the folder")
        if names is not None and path not in names:
            raise CheckpointRefused(f"{fqn} points to {path}, which is not in the manifest")
        if transforms:
            raise CheckpointRefused(f"{fqn} is stored with transforms ({transforms}), which are not read")


def scan(data: bytes, names: Collection[str]) -> str | None:
    """What is wrong with the content of a `.metadata`, or None; runs nothing of it and imports no torch."""
    try:
        index = _Scanner(io.BytesIO(data)).load()
        entries, places = index.state["state_dict_metadata"], index.state["storage_data"]
        check(
            ((key, type(entry).__name__ == "TensorStorageMetadata") for key, entry in entries.items()),
            (
                (at.state["fqn"], one.state.get("relative_path"), one.state.get("transform_descriptors"))
                for at, one in places.items()
            ),
            names,
        )
    except CheckpointRefused as error:
        return f"is refused: {error}"
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to mean
        return f"is damaged: {type(error).__name__}: {error}"
    return None


class _Scanner(Unpickler):
    def known(self, module: str, name: str) -> Any:
        return type(name, (_Empty,), {})


class _Empty:
    """Stands for a class of the index: takes its arguments and its state, and does nothing with them."""

    state: Any = None

    def __init__(self, *_arguments: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.state = state
