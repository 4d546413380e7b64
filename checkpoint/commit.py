"""One save: all ranks write, rank 0 makes it visible, then older ones go.

What makes it visible depends on the storage: a rename on local folders (`commit_local`), the manifest as the last
file elsewhere (`commit_remote`). In both a reader sees all of a checkpoint or none, a crash at any point leaves
earlier ones as they were, and nothing is removed before the new one is safe. Only rank 0 makes and removes folders;
the others write into one that they know exists.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from titan.checkpoint.agreement import Agreement
from titan.checkpoint.commit_local import LocalCommit
from titan.checkpoint.commit_remote import RemoteCommit
from titan.checkpoint.folders import complete_steps, step_name, superseded
from titan.checkpoint.manifest import STATE, entry_of, to_bytes
from titan.checkpoint.pieces import Piece
from titan.checkpoint.storage import Folder, Where, at
from titan.checkpoint.storage_local import LocalFolder
from titan.checkpoint.storage_remote import RemoteFolder
from titan.checkpoint.write import write_pieces

log = logging.getLogger("titan")


def save(where: Where, step: int, pieces: Sequence[Piece], state: str, *, keep: int, agreement: Agreement) -> int:
    """Writes `<where>/step-N` and removes older ones. A collective call.

    Args:
        state: text of state.json.
        keep: complete checkpoints to keep, 0 for all.

    Returns:
        On rank 0 the size of all files but the manifest, in bytes.

    Raises:
        CheckpointError: on all ranks alike; earlier checkpoints are untouched, and what was written of this one is
            gone.
    """
    folder = at(where)
    commit = _of(folder)
    target = commit.target(step)

    def publish() -> int:
        text = state.encode()
        target.write(STATE, text)
        every = {**files, STATE: entry_of(text)}
        commit.publish(step, to_bytes(step, every))
        _retain(folder, step, keep)
        return sum(entry.size for entry in every.values())

    agreement.first(f"creating {target}", lambda: commit.begin(step))
    try:
        files = write_pieces(target, pieces, agreement)
        return agreement.first(f"completing {folder / step_name(step)}", publish)
    except Exception:
        if agreement.rank == 0:
            commit.abandon(step)
        raise


def recover(where: Where) -> None:
    """Undoes what a crash left half done. On rank 0, before anything is looked for."""
    _of(at(where)).recover()


def _of(folder: Folder) -> LocalCommit | RemoteCommit:
    if isinstance(folder, LocalFolder):
        return LocalCommit(folder)
    assert isinstance(folder, RemoteFolder)
    return RemoteCommit(folder)


def _retain(folder: Folder, step: int, keep: int) -> None:
    if keep == 0:
        return
    listing = folder.listing()
    assert listing is not None
    own = [one for one in complete_steps(folder) if step_name(one) not in listing.links]
    for one in superseded(own, keep=keep, written=step):
        try:
            _of(folder).remove(one)
        except Exception as error:
            # The new checkpoint is safe; a full or strict storage that keeps an old one is no reason to end the run.
            log.warning("checkpoint: %s could not be removed: %s", folder / step_name(one), error)
