"""Which folders are checkpoints, and which of them are complete.

    <folder>/step-120/          a checkpoint: .metadata and __R_0.distcp (DCP), state.json, manifest.json
    <folder>/.tmp-step-130/     being written, or left by a crash
    <folder>/.old-step-120/     set aside while step-120 is written anew
    <folder>/model-only/step-120/   weights alone, in the same format

Complete means that the manifest, which is written last, is there and undamaged, is about this step, every file that it
lists has its size, and the two files that are read whole anyway, state.json and .metadata, have their checksums. Names
that are not exactly ours (step-abc, step-2-backup, notes.txt) are other people's: never read, counted, or removed.
"""

from __future__ import annotations

import json
import re
from typing import Any

from titan.checkpoint.errors import CheckpointError, CheckpointRefused
from titan.checkpoint.manifest import MANIFEST, METADATA, STATE, Damaged, Entry, Manifest, differences, parse
from titan.checkpoint.storage import Listing, Where, at

EXPORTS = "model-only"
UNFINISHED = f"it has no {MANIFEST}, so its writing was cut off"
LEFTOVER = re.compile(r"\.(tmp|old)-(step-[0-9]+)")
_STEP = re.compile(r"step-(0|[1-9][0-9]*)")


def step_name(step: int) -> str:
    return f"step-{step}"


def is_step(name: str) -> bool:
    return _STEP.fullmatch(name) is not None


def is_leftover(name: str) -> bool:
    """Whether it is a folder that a local save makes on its way."""
    return LEFTOVER.fullmatch(name) is not None


def steps_in(where: Where) -> list[int]:
    """Steps that have a folder of our name, complete or not, in ascending numeric order; none where the folder does
    not exist.

    Raises:
        CheckpointError: the path is not a folder.
    """
    folder = at(where)
    try:
        listing = folder.listing()
    except NotADirectoryError:
        raise CheckpointError(
            f"{folder} is not a folder: checkpoints cannot be kept there; choose another checkpoint.folder"
        ) from None
    matches = (_STEP.fullmatch(name) for name in (listing.folders if listing else ()))
    return sorted(int(match[1]) for match in matches if match)


def incomplete(where: Where, step: int | None = None) -> str | None:
    """Why the folder is not a complete checkpoint (of this step, if given), or None if it is one."""
    folder = at(where)
    try:
        manifest, listing = manifest_of(folder), folder.listing()
    except FileNotFoundError:
        return UNFINISHED
    except Damaged as error:
        return f"its {MANIFEST} {error}"
    except NotADirectoryError:
        return "it is a file"
    if step is not None and manifest.step != step:
        return f"its {MANIFEST} is that of step {manifest.step}"
    if listing is None:
        return UNFINISHED
    for name, entry in manifest.files.items():
        problem = wrong_size(listing, name, entry)
        if problem is not None:
            return f"{name} {problem}"
    for name in (STATE, METADATA):
        problem = differences(folder.read(name), manifest.files[name])
        if problem is not None:
            return f"{name} {problem}"
    return None


def manifest_of(where: Where) -> Manifest:
    """Raises FileNotFoundError where there is none, Damaged where it is not what was written, NotADirectoryError."""
    return parse(at(where).read(MANIFEST))


def wrong_size(listing: Listing, name: str, entry: Entry) -> str | None:
    """What a listing says against a file of the manifest, to follow its name."""
    if name in listing.links:
        return "is a link, which is not followed"
    if name not in listing.files:
        return "is missing"
    if listing.files[name] != entry.size:
        return f"has {listing.files[name]} bytes, the manifest says {entry.size}"
    return None


def complete_steps(where: Where) -> list[int]:
    """Complete checkpoints in ascending numeric order."""
    folder = at(where)
    return [step for step in steps_in(folder) if incomplete(folder / step_name(step), step) is None]


def read_state(where: Where) -> dict[str, Any]:
    """What state.json holds. Raises CheckpointRefused where it is not a JSON object."""
    folder = at(where)
    try:
        state = json.loads(folder.read(STATE))
    except (ValueError, RecursionError) as error:
        raise CheckpointRefused(f"{folder / STATE} is damaged: {error}") from None
    if not isinstance(state, dict):
        raise CheckpointRefused(f"{folder / STATE} is damaged: it holds no object")
    return state


def superseded(complete: list[int], *, keep: int, written: int) -> list[int]:
    """Steps to remove after `written` has become visible: all but the `keep` highest and itself; none where `keep`
    is 0.
    """
    if keep == 0:
        return []
    kept = {*sorted(complete)[-keep:], written}
    return [step for step in sorted(complete) if step not in kept]
