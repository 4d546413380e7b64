"""How a checkpoint becomes visible: written beside its final name, complete and synced, then renamed. A reader sees
all of it or none.

A crash at any point leaves a `.tmp-step-N`, which the next save of that step removes, or a complete `step-N`. Where
a step is written anew (a run that went back), the old one is set aside by a rename, so that a crash between the two
renames can be undone: `recover`. Only rank 0 makes, renames and removes folders; the others write into a folder
that they know exists.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from titan.checkpoint.agreement import Agreement
from titan.checkpoint.errors import CheckpointRefused
from titan.checkpoint.folders import complete_steps, incomplete, step_name, superseded
from titan.checkpoint.manifest import MANIFEST, STATE, Entry, entry_of, to_bytes
from titan.checkpoint.pieces import Piece
from titan.checkpoint.write import sync, write_pieces

log = logging.getLogger("titan")
_TEMPORARY = re.compile(r"\.(tmp|old)-(step-[0-9]+)")


def save(folder: Path, step: int, pieces: Sequence[Piece], state: str, *, keep: int, agreement: Agreement) -> int:
    """Writes `<folder>/step-N` and removes older ones. A collective call.

    Args:
        state: text of state.json.
        keep: complete checkpoints to keep, 0 for all.

    Returns:
        Bytes on disk.

    Raises:
        CheckpointError: on all ranks alike; earlier checkpoints are untouched, and what was written of this one is
            gone.
    """
    temporary = folder / f".tmp-{step_name(step)}"

    def publish() -> int:
        _publish(folder, step, temporary, state, files)
        size = sum(path.stat().st_size for path in (folder / step_name(step)).iterdir())
        _retain(folder, step, keep)
        return size

    agreement.first(f"creating {temporary}", lambda: _create(folder, temporary))
    try:
        files = write_pieces(temporary, pieces, agreement)
        return agreement.first(f"completing {folder / step_name(step)}", publish)
    except Exception:
        if agreement.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)  # gives a full disk its space back; if not, the next save will
        raise


def recover(folder: Path) -> None:
    """Undoes what a crash left half done. On rank 0, before anything is looked for."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        match = _TEMPORARY.fullmatch(path.name)
        if not match:
            continue
        final = folder / match[2]
        if match[1] == "old" and incomplete(path) is None and incomplete(final) is not None:
            log.warning("checkpoint: %s is put back; a crash had left it set aside", final)
            _remove(final)
            path.rename(final)
        else:
            log.warning("checkpoint: %s is removed; a crash had left it unfinished", path)
            _remove(path)


def _create(folder: Path, temporary: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _remove(temporary)
    temporary.mkdir()


def _publish(folder: Path, step: int, temporary: Path, state: str, files: Mapping[str, Entry]) -> None:
    text = state.encode()
    _write(temporary / STATE, text)
    _write(temporary / MANIFEST, to_bytes(step, {**files, STATE: entry_of(text)}))
    sync(temporary)
    final, old = folder / step_name(step), folder / f".old-{step_name(step)}"
    _remove(old)
    if final.exists() or final.is_symlink():
        final.rename(old)
    temporary.rename(final)
    sync(folder)
    _remove(old)


def _retain(folder: Path, step: int, keep: int) -> None:
    own = [one for one in complete_steps(folder) if not (folder / step_name(one)).is_symlink()]
    for one in superseded(own, keep=keep, written=step):
        doomed = folder / f".tmp-{step_name(one)}"
        try:
            _remove(doomed)
            (folder / step_name(one)).rename(doomed)  # at once, so that no reader meets half of it
            _remove(doomed)
        except OSError as error:
            # The new checkpoint is safe; a full or strict storage that keeps an old one is no reason to end the run.
            log.warning("checkpoint: %s could not be removed: %s", folder / step_name(one), error)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    sync(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_state(folder: Path) -> dict[str, Any]:
    """What state.json holds. Raises CheckpointRefused where it is not a JSON object."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointRefused(f"{folder / STATE} is damaged: {error}") from None
    if not isinstance(state, dict):
        raise CheckpointRefused(f"{folder / STATE} is damaged: it holds no object")
    return state
