"""Commit by rename: a checkpoint is written beside its final name, complete and synced, then renamed.

A crash leaves a `.tmp-step-N`, which the next start or the next save of that step removes, or a complete `step-N`.
Where a step is written anew (a run that went back), the old one is set aside by a rename, so that a crash between the
two renames can be undone: `recover`.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from titan.checkpoint.folders import LEFTOVER, incomplete, step_name
from titan.checkpoint.manifest import MANIFEST
from titan.checkpoint.storage_local import LocalFolder, sync

log = logging.getLogger("titan")


class LocalCommit:
    """Makes and removes the checkpoints of a local folder; on rank 0, but for `target`."""

    def __init__(self, folder: LocalFolder) -> None:
        self._path = folder.path

    def target(self, step: int) -> LocalFolder:
        """Where the files of a step are written."""
        return LocalFolder(self._temporary(step))

    def begin(self, step: int) -> None:
        temporary = self._temporary(step)
        self._path.mkdir(parents=True, exist_ok=True)
        _remove(temporary)
        temporary.mkdir()

    def publish(self, step: int, manifest: bytes) -> None:
        temporary, final = self._temporary(step), self._path / step_name(step)
        old = self._path / f".old-{step_name(step)}"
        LocalFolder(temporary).write(MANIFEST, manifest)
        sync(temporary)
        _remove(old)
        if final.exists() or final.is_symlink():
            final.rename(old)
        temporary.rename(final)
        sync(self._path)
        _remove(old)

    def abandon(self, step: int) -> None:
        """Gives a full disk its space back; where that fails too, the next save will."""
        shutil.rmtree(self._temporary(step), ignore_errors=True)

    def remove(self, step: int) -> None:
        doomed = self._temporary(step)
        _remove(doomed)
        (self._path / step_name(step)).rename(doomed)  # at once, so that no reader meets half of it
        _remove(doomed)

    def recover(self) -> None:
        if not self._path.is_dir():
            return
        for path in sorted(self._path.iterdir()):
            match = LEFTOVER.fullmatch(path.name)
            if not match:
                continue
            final = self._path / match[2]
            if match[1] == "old" and incomplete(path) is None and incomplete(final) is not None:
                log.warning("checkpoint: %s is put back; a crash had left it set aside", final)
                _remove(final)
                path.rename(final)
            else:
                log.warning("checkpoint: %s is removed; a crash had left it unfinished", path)
                _remove(path)

    def _temporary(self, step: int) -> Path:
        return self._path / f".tmp-{step_name(step)}"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
