"""Which checkpoint a run begins from. One rank decides and tells the others, since two looks at a folder may differ.

In this order: the step that checkpoint.load_step names in the run's own folder; the newest complete one there; then
checkpoint.initial_load_path, a checkpoint or a folder of them (newest complete); then nothing. The own folder wins,
so that the same command, run again after a crash, goes on instead of beginning anew.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titan.checkpoint.commit import read_state
from titan.checkpoint.errors import CheckpointRefused
from titan.checkpoint.folders import EXPORTS, FORMAT, incomplete, step_name, steps_in

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

    folder: Path
    state: dict[str, Any]
    own: bool
    weights_only: bool
    exported: bool


def find(folder: Path, *, load_step: int, initial: Path | None, initial_weights_only: bool) -> Source | None:
    """Looks for the checkpoint to begin from; None for a fresh start.

    Raises:
        CheckpointRefused: a checkpoint that was asked for by name is not there, or is not complete.
    """
    complete = _complete(folder)
    if complete:
        step = load_step if load_step >= 0 else complete[-1]
        if step not in complete:
            raise CheckpointRefused(_no_step(folder, step, complete))
        if initial is not None:
            log.warning(
                "checkpoint: initial_load_path = %s is not used: this run has checkpoints in %s", initial, folder
            )
        if step < complete[-1]:
            log.warning("checkpoint: load_step = %d is loaded, although %s goes up to %d", step, folder, complete[-1])
        return _source(folder / step_name(step), own=True, exports=folder / EXPORTS)
    if initial is None:
        if load_step >= 0:
            raise CheckpointRefused(_no_step(folder, load_step, complete))
        return None
    if load_step >= 0:
        log.warning(
            "checkpoint: load_step = %d is not used: it is about %s, which has no checkpoint yet", load_step, folder
        )
    if not initial.is_dir():
        raise CheckpointRefused(f"checkpoint.initial_load_path = {initial}: there is no such folder")
    inside = _complete(initial)
    chosen = initial / step_name(inside[-1]) if inside else initial
    reason = incomplete(chosen)
    if reason is not None:
        raise CheckpointRefused(
            f"checkpoint.initial_load_path = {initial}: it is neither a checkpoint ({reason}) nor a folder with "
            f"complete step-N"
        )
    return _source(chosen, own=False, weights_only=initial_weights_only)


def _source(path: Path, *, own: bool, weights_only: bool = False, exports: Path | None = None) -> Source:
    state = read_state(path)
    if state.get("format") != FORMAT:
        raise CheckpointRefused(f"{path} has format {state.get('format')}; this version reads {FORMAT}")
    if state.get("weights_only") and not weights_only:
        raise CheckpointRefused(f"{path} holds weights alone: load it with checkpoint.initial_load_model_only = true")
    exported = exports is not None and incomplete(exports / path.name, state.get("step")) is None
    return Source(path, state, own, weights_only, exported)


def _complete(folder: Path) -> list[int]:
    complete = []
    for step in steps_in(folder):
        reason = incomplete(folder / step_name(step), step)
        if reason is None:
            complete.append(step)
        else:
            log.warning("checkpoint: %s is not complete and passed over: %s", folder / step_name(step), reason)
    return complete


def _no_step(folder: Path, step: int, complete: list[int]) -> str:
    there = ", ".join(map(str, complete)) or "none"
    return f"checkpoint.load_step = {step}: {folder} has no complete checkpoint of that step; complete are: {there}"
