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

import re
from pathlib import Path

from titan.checkpoint.errors import CheckpointError
from titan.checkpoint.manifest import MANIFEST, METADATA, STATE, Damaged, differences, parse

EXPORTS = "model-only"
UNFINISHED = f"it has no {MANIFEST}, so its writing was cut off"
_STEP = re.compile(r"step-(0|[1-9][0-9]*)")


def step_name(step: int) -> str:
    return f"step-{step}"


def steps_in(folder: Path) -> list[int]:
    """Steps that have a folder of our name, complete or not, in ascending numeric order; none where the folder does
    not exist.

    Raises:
        CheckpointError: the path is not a folder.
    """
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder: checkpoints cannot be kept there; choose another checkpoint.folder"
        )
    matches = (_STEP.fullmatch(entry.name) for entry in folder.iterdir() if entry.is_dir())
    return sorted(int(match[1]) for match in matches if match)


def incomplete(folder: Path, step: int | None = None) -> str | None:
    """Why the folder is not a complete checkpoint (of this step, if given), or None if it is one."""
    try:
        manifest = parse((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        return UNFINISHED
    except Damaged as error:
        return f"its {MANIFEST} {error}"
    except NotADirectoryError:
        return "it is a file"
    if step is not None and manifest.step != step:
        return f"its {MANIFEST} is that of step {manifest.step}"
    for name, entry in manifest.files.items():
        path = folder / name
        if path.is_symlink():
            return f"{name} is a link, which is not followed"
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry.size:
            return f"{name} has {path.stat().st_size} bytes, the manifest says {entry.size}"
    for name in (STATE, METADATA):
        problem = differences((folder / name).read_bytes(), manifest.files[name])
        if problem is not None:
            return f"{name} {problem}"
    return None


def complete_steps(folder: Path) -> list[int]:
    """Complete checkpoints in ascending numeric order."""
    return [step for step in steps_in(folder) if incomplete(folder / step_name(step), step) is None]


def superseded(complete: list[int], *, keep: int, written: int) -> list[int]:
    """Steps to remove after `written` has become visible: all but the `keep` highest and itself; none where `keep`
    is 0.
    """
    if keep == 0:
        return []
    kept = {*sorted(complete)[-keep:], written}
    return [step for step in sorted(complete) if step not in kept]
