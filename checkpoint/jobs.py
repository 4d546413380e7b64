"""One save as plain values: which pieces and which text go into which folder. Made at the call, written then or later.

The text of state.json is made at the call too, since the trainer goes on changing the values that it was made from.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from titan.checkpoint import commit
from titan.checkpoint.agreement import Agreement
from titan.checkpoint.folders import step_name
from titan.checkpoint.manifest import FORMAT
from titan.checkpoint.pieces import Piece
from titan.checkpoint.staging import Staging
from titan.checkpoint.storage import Folder

log = logging.getLogger("titan")
_OWN_KEYS = ("format", "step", "torch", "written", "weights_only")


@dataclass(frozen=True)
class Job:
    """One folder to write: what `commit.save` takes."""

    folder: Folder
    pieces: list[Piece]
    state: str
    keep: int


def document(step: int, state: Mapping[str, Any], *, weights_only: bool) -> str:
    """Text of state.json.

    Raises:
        TypeError, ValueError: the state is not JSON, or holds a key that is the checkpoint's own.
    """
    clash = [key for key in _OWN_KEYS if key in state and (key != "step" or state[key] != step)]
    if clash:
        raise ValueError(f"the state may not hold {', '.join(clash)}: these are the checkpoint's own")
    own = {
        "format": FORMAT,
        "step": step,
        "torch": torch.__version__,
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "weights_only": weights_only,
    }
    return json.dumps({**own, **state}, indent=1)


def stored_as(pieces: Sequence[Piece], dtype: torch.dtype) -> list[Piece]:
    """The same pieces, to be converted while they are written; the tensors stay as they are."""
    return [replace(one, stored=dtype) if one.stored.is_floating_point else one for one in pieces]


def stage(jobs: Sequence[Job], staging: Staging) -> tuple[list[Job], Callable[[], None]]:
    """The jobs over copies, each tensor copied once, and what to call before reading the copies."""
    every = {id(one.tensor): one for job in jobs for one in job.pieces}
    copies, ready = staging.copy(list(every.values()))
    copied = {key: one.tensor for key, one in zip(every, copies, strict=True)}
    staged = [replace(job, pieces=[replace(one, tensor=copied[id(one.tensor)]) for one in job.pieces]) for job in jobs]
    return staged, ready


def write(jobs: Sequence[Job], step: int, ready: Callable[[], None], agreement: Agreement) -> None:
    """Writes and commits the jobs in order. A collective call; raises CheckpointError on all ranks alike."""
    ready()
    for job in jobs:
        started = time.monotonic()
        size = commit.save(job.folder, step, job.pieces, job.state, keep=job.keep, agreement=agreement)
        path, seconds = job.folder / step_name(step), time.monotonic() - started
        log.info("checkpoint: saved %s, %.1f MiB in %.1f s", path, size / 2**20, seconds)
