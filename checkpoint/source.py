"""Which checkpoint a run begins from. One rank decides and tells the others, since two looks at a folder may differ.

In this order: the step that checkpoint.load_step names in the run's own folder; the newest complete one there; then
checkpoint.initial_load_path, a checkpoint or a folder of them (newest complete); then nothing. The own folder wins,
so that the same command, run again after a crash, goes on instead of beginning anew. One that is unfinished or damaged
is named and passed over for an older one; refused where it was asked for by name, or where all that there are are
damaged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from titan.checkpoint.errors import CheckpointRefused, listed
from titan.checkpoint.folders import EXPORTS, UNFINISHED, incomplete, read_state, step_name, steps_in
from titan.checkpoint.manifest import READABLE
from titan.checkpoint.storage import Folder

log = logging.getLogger("titan")


@dataclass(frozen=True)
class Source:
    """A complete checkpoint to load.

    Attributes:
        folder: the checkpoint.
        state: its state.json.
        own: whether it is this run's own.
        weights_only: whether to take the weights alone.
        exported: whether the weights-only export of this step exists beside it.
    """

    folder: Folder
    state: dict[str, Any]
    own: bool
    weights_only: bool
    exported: bool


def newest(folder: Folder, *, before: int | None = None) -> Source | None:
    """The newest complete checkpoint of the run's own folder, of a step before `before`; None where there is none."""
    complete = [step for step in _survey(folder, {})[0] if before is None or step < before]
    return _source(folder / step_name(complete[-1]), own=True, exports=folder / EXPORTS) if complete else None


def find(
    folder: Folder, *, load_step: int, initial: Folder | None, initial_weights_only: bool, damaged: Mapping[str, str]
) -> Source | None:
    """Looks for the checkpoint to begin from; None for a fresh start.

    Args:
        damaged: what is wrong with checkpoints that look complete, by their path.

    Raises:
        CheckpointRefused: a checkpoint that was asked for by name is not there or not whole, or there are checkpoints
            and all of them are damaged.
    """
    complete, passed = _survey(folder, damaged)
    if complete or (passed and initial is None and load_step >= 0):
        step = load_step if load_step >= 0 else complete[-1]
        if step not in complete:
            raise CheckpointRefused(_no_step(folder, step, complete, passed.get(step)))
        if initial is not None:
            log.warning(
                "checkpoint: initial_load_path = %s is not used: this run has checkpoints in %s", initial, folder
            )
        if step < complete[-1]:
            log.warning("checkpoint: load_step = %d is loaded, although %s goes up to %d", step, folder, complete[-1])
        return _source(folder / step_name(step), own=True, exports=folder / EXPORTS)
    _refuse_if_damaged(folder, passed)
    if initial is None:
        if load_step >= 0:
            raise CheckpointRefused(_no_step(folder, load_step, complete, None))
        return None
    if load_step >= 0:
        log.warning(
            "checkpoint: load_step = %d is not used: it is about %s, which has no checkpoint yet", load_step, folder
        )
    return _source(_initial(initial, damaged), own=False, weights_only=initial_weights_only)


def _initial(path: Folder, damaged: Mapping[str, str]) -> Folder:
    said = f"checkpoint.initial_load_path = {path}"
    if path.listing() is None:
        raise CheckpointRefused(f"{said}: there is no such folder")
    inside, passed = _survey(path, damaged)
    if inside:
        return path / step_name(inside[-1])
    reason = incomplete(path) or damaged.get(str(path))
    if reason is not None:
        _refuse_if_damaged(path, passed)
        raise CheckpointRefused(f"{said}: it is neither a checkpoint ({reason}) nor a folder with complete step-N")
    return path


def _source(path: Folder, *, own: bool, weights_only: bool = False, exports: Folder | None = None) -> Source:
    state = read_state(path)
    if state.get("format") not in READABLE:
        raise CheckpointRefused(f"{path} has format {state.get('format')}; this version reads {READABLE}")
    if state.get("weights_only") and not weights_only:
        raise CheckpointRefused(f"{path} holds weights alone: load it with checkpoint.initial_load_model_only = true")
    exported = exports is not None and incomplete(exports / path.name, state.get("step")) is None
    return Source(path, state, own, weights_only, exported)


def _survey(folder: Folder, damaged: Mapping[str, str]) -> tuple[list[int], dict[int, str]]:
    """Steps that are whole, in ascending order, and the others with the reason, which is also told."""
    complete: list[int] = []
    passed: dict[int, str] = {}
    for step in steps_in(folder):
        path = folder / step_name(step)
        reason = incomplete(path, step) or damaged.get(str(path))
        if reason is None:
            complete.append(step)
        else:
            passed[step] = reason
            log.warning("checkpoint: %s is not complete and passed over: %s", path, reason)
    return complete, passed


def _refuse_if_damaged(folder: Folder, passed: Mapping[int, str]) -> None:
    """A crash in the first save leaves nothing to go on from; damage leaves something that may still be repaired, and
    beginning anew would bury it.
    """
    lost = [f"{step_name(step)}: {reason}" for step, reason in passed.items() if reason != UNFINISHED]
    if lost:
        raise CheckpointRefused(
            f"every checkpoint in {folder} is damaged:\n{listed(lost)}\nrepair one, or remove them to begin anew"
        )


def _no_step(folder: Folder, step: int, complete: list[int], reason: str | None) -> str:
    there = ", ".join(map(str, complete)) or "none"
    why = f"; that one is damaged: {reason}" if reason else ""
    return (
        f"checkpoint.load_step = {step}: {folder} has no complete checkpoint of that step{why}; complete are: {there}"
    )
