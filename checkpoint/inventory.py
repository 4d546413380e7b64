"""What lies in a run folder, a checkpoint folder, or one step: for `titan checkpoint`. No torch here.

A run folder is one with config.toml, which says where its checkpoints are: they may be behind a URI.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import tomli

from titan.checkpoint.errors import CheckpointRefused
from titan.checkpoint.folders import EXPORTS, incomplete, is_leftover, is_step, read_state, step_name, steps_in
from titan.checkpoint.manifest import MANIFEST
from titan.checkpoint.storage import Folder, at, is_uri, under
from titan.checkpoint.storage_local import LocalFolder

_CONFIG = "config.toml"


@dataclass(frozen=True)
class Row:
    """A line of `titan checkpoint list`; what is not known is None.

    Attributes:
        reason: why it is not complete, None if it is.
        written: UTC, ISO 8601.
        bytes: of all files that are there.
        layout: the degrees that it was saved at.
    """

    path: str
    reason: str | None
    bytes: int
    step: int | None = None
    written: str | None = None
    layout: str | None = None
    tokens: int | None = None
    weights_only: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "complete": self.reason is None}


def checkpoint_folder(path: str) -> Folder:
    """The checkpoint folder, or the one checkpoint, that a path of any of the three kinds means.

    Raises:
        CheckpointRefused: there is nothing at the path, or the run's configuration does not say where.
    """
    folder = at(path)
    try:
        listing = folder.listing()
    except NotADirectoryError:
        raise CheckpointRefused(f"{path} is a file: give a run folder, a checkpoint folder, or one step-N") from None
    if listing is None:
        raise CheckpointRefused(f"{path}: there is no such folder")
    if is_checkpoint(folder) or _CONFIG not in listing.files:
        return folder
    inside = _configured(folder)
    if is_uri(inside):
        return at(inside)
    return under(folder.path, inside) if isinstance(folder, LocalFolder) else folder / inside


def is_checkpoint(folder: Folder) -> bool:
    """Whether it is one checkpoint, whole or not, and not a folder of them."""
    listing = folder.listing()
    named = is_step(folder.name) and not (listing and listing.folders)
    return named or (listing is not None and MANIFEST in listing.files)


def checkpoints(folder: Folder) -> list[Folder]:
    """One checkpoint as it is; of a folder all of them, whole or not, by number, and then the exports."""
    if is_checkpoint(folder):
        return [folder]
    found = [folder / step_name(step) for step in steps_in(folder)]
    exports = folder / EXPORTS
    return found + [exports / step_name(step) for step in steps_in(exports)]


def rows(folder: Folder) -> list[Row]:
    """A row for each checkpoint, and for what a crash or a running save has left unfinished."""
    listing = folder.listing()
    unfinished = sorted(name for name in (listing.folders if listing else ()) if is_leftover(name))
    left = [
        Row(str(folder / name), "it is being written, or a crash left it", _size(folder / name)) for name in unfinished
    ]
    return [_row(one) for one in checkpoints(folder)] + left


def _row(folder: Folder) -> Row:
    step = int(folder.name.removeprefix("step-")) if is_step(folder.name) else None
    reason = incomplete(folder, step)
    if reason is not None:
        return Row(str(folder), reason, _size(folder), step)
    state = read_state(folder)
    progress = state.get("train_state")
    return Row(
        str(folder),
        None,
        _size(folder),
        state.get("step"),
        state.get("written"),
        state.get("layout"),
        progress.get("tokens") if isinstance(progress, dict) else None,
        bool(state.get("weights_only")),
    )


def _size(folder: Folder) -> int:
    listing = folder.listing()
    return sum(listing.files.values()) if listing else 0


def _configured(run: Folder) -> str:
    try:
        section = tomli.loads(run.read(_CONFIG).decode()).get("checkpoint", {})
    except ValueError as error:
        raise CheckpointRefused(f"{run / _CONFIG} cannot be read, to see where the checkpoints are: {error}") from None
    return str(section.get("folder", "checkpoint"))
