"""Commit without rename, for object stores: files go to their final place, and manifest.json, the last of them, makes
the checkpoint count.

A reader takes only a prefix whose manifest is there and whose files have its sizes. What is removed loses its manifest
first. A crash leaves a prefix without manifest, which nobody counts and the next save of that step clears; a step that
is written anew is not there until it is whole again, and older ones are. Nothing is cleared at a start: another
machine may be writing there.
"""

from __future__ import annotations

import logging

from titan.checkpoint.folders import step_name
from titan.checkpoint.manifest import MANIFEST
from titan.checkpoint.storage_remote import RemoteFolder

log = logging.getLogger("titan")


class RemoteCommit:
    """Makes and removes the checkpoints of a remote folder; on rank 0, but for `target`."""

    def __init__(self, folder: RemoteFolder) -> None:
        self._folder = folder

    def target(self, step: int) -> RemoteFolder:
        """Where the files of a step are written."""
        return self._folder / step_name(step)

    def begin(self, step: int) -> None:
        self.remove(step)
        self.target(step).make()

    def publish(self, step: int, manifest: bytes) -> None:
        self.target(step).write(MANIFEST, manifest)

    def abandon(self, step: int) -> None:
        """Clears what was written; where that fails too, the next save of the step will."""
        try:
            self.remove(step)
        except Exception as error:  # a storage raises what its client library happens to; the save's own error matters
            log.warning("checkpoint: %s could not be removed: %s", self.target(step), error)

    def remove(self, step: int) -> None:
        self.target(step).remove(first=MANIFEST)

    def recover(self) -> None:
        """Nothing to undo: what a crash left has no manifest."""
