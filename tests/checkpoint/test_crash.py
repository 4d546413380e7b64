"""A save killed with -9 at each point: what is visible then, and that the next run goes on. Real processes, killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.toy import manager, model, optimizer_of, saved, steps_on_disk
from tests.distributed.ranks import RankError, run_ranks
from titan.checkpoint import commit, commit_local
from titan.checkpoint.folders import complete_steps


def save_and_die(folder: Path, steps: list[int], point: str) -> None:
    """Saves the steps; the process kills itself where it first calls the named function for the last of them."""
    saved(folder, steps[:-1])
    module = commit_local if point == "_remove" else commit
    original = getattr(module, point)

    def die(*args: Any) -> Any:
        set_aside = args and Path(str(args[0])).name.startswith(".old-") and Path(str(args[0])).exists()
        if point == "_remove" and not set_aside:
            return original(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(module, point, die)
    saved(folder, steps[-1:])


def killed(folder: Path, steps: list[int], point: str) -> None:
    with pytest.raises(RankError, match="killed"):
        run_ranks(save_and_die, 1, folder, steps, point)


@pytest.mark.parametrize("point", ["write_pieces", "to_bytes"])
def test_a_killed_save_leaves_no_step_and_the_next_one_works(tmp_path, point):
    killed(tmp_path, [1, 2], point)
    assert steps_on_disk(tmp_path) == [".tmp-step-2", "step-1"]
    part = model()
    one = manager(tmp_path, part, optimizer_of(part))
    assert one.load()["step"] == 1
    assert steps_on_disk(tmp_path) == ["step-1"]
    one.save(2, {})
    assert complete_steps(tmp_path) == [1, 2]


def test_a_kill_after_the_renames_of_a_rewritten_step_keeps_the_new_one(tmp_path):
    killed(tmp_path, [1, 1], "_remove")
    assert steps_on_disk(tmp_path) == [".old-step-1", "step-1"]
    new = (tmp_path / "step-1" / "state.json").read_bytes()
    commit.recover(tmp_path)
    assert steps_on_disk(tmp_path) == ["step-1"]
    assert (tmp_path / "step-1" / "state.json").read_bytes() == new
