"""Checkpoints on real ranks: saved at one layout and loaded at another, in the background, with one rank failing."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from tests.checkpoint.toy import flip
from tests.distributed.checkpoint_toy import STEP, Layout, Run
from tests.distributed.ranks import RankError, run_ranks
from titan.checkpoint import CheckpointError, CheckpointRefused, commit
from titan.checkpoint.folders import complete_steps
from titan.checkpoint.metadata import read_metadata
from titan.config.layout import Degrees

LAYOUTS = {
    "one": Layout(),
    "fsdp 2": Layout(Degrees(dp_shard=2)),
    "fsdp 4": Layout(Degrees(dp_shard=4)),
    "hsdp 2x2": Layout(Degrees(dp_replicate=2, dp_shard=2)),
    "tp 4": Layout(Degrees(tp=4)),
    "tp 2 x fsdp 2": Layout(Degrees(tp=2, dp_shard=2)),
    "pp 2": Layout(Degrees(pp=2)),
    "pp 2, V": Layout(Degrees(pp=2), v=True),
    "pp 2 x tp 2": Layout(Degrees(pp=2, tp=2)),
    "pp 2 x fsdp 2": Layout(Degrees(pp=2, dp_shard=2)),
    "tied": Layout(tied=True),
    "tied, fsdp 2": Layout(Degrees(dp_shard=2), tied=True),
    "tied, tp 2 x fsdp 2": Layout(Degrees(tp=2, dp_shard=2), tied=True),
    "tied, pp 2": Layout(Degrees(pp=2), tied=True),
    "tied, pp 2, V": Layout(Degrees(pp=2), v=True, tied=True),
}


def save_each(layouts: list[str], root: Path) -> None:
    for name in layouts:
        run = Run(LAYOUTS[name], root / name, filled=True)
        run.manager.save(STEP, {"from": name})
        run.manager.close()


def load_each(name: str, sources: list[str], root: Path) -> list[str]:
    run = Run(LAYOUTS[name], root / name, filled=False)
    problems = []
    for source in sources:
        for value in run.values().values():
            value.zero_()
        manager = run.manager_of(root / source)
        state = manager.load()
        assert state is not None
        assert state["from"] == source
        problems += [f"{source} -> {name}: {wrong}" for wrong in run.wrong()]
        manager.close()
    run.manager.close()
    return problems


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """One checkpoint of each layout."""
    folder = tmp_path_factory.mktemp("layouts")
    for world_size in (1, 2, 4):
        run_ranks(save_each, world_size, [n for n, one in LAYOUTS.items() if one.world_size == world_size], folder)
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_loads_what_each_other_saved(root, name):
    layout = LAYOUTS[name]
    sources = [source for source, one in LAYOUTS.items() if one.tied == layout.tied]
    for rank, problems in enumerate(run_ranks(load_each, layout.world_size, name, sources, root)):
        assert problems == [], f"rank {rank}"


@pytest.mark.parametrize("name", LAYOUTS)
def test_names_shapes_and_size_on_disk_do_not_depend_on_the_layout(root, name):
    def content(folder: Path) -> tuple[dict[str, Any], int]:
        entries = read_metadata(folder).state_dict_metadata
        shapes = {key: (entry.size, entry.properties.dtype) for key, entry in entries.items()}
        return shapes, sum(torch.Size(chunk.sizes).numel() for entry in entries.values() for chunk in entry.chunks)

    oracle = "tied" if LAYOUTS[name].tied else "one"
    assert content(root / name / f"step-{STEP}") == content(root / oracle / f"step-{STEP}")


def load_tied_into_untied(folder: Path) -> str:
    run = Run(LAYOUTS["pp 2"], folder, filled=False)
    with pytest.raises(CheckpointError) as error:
        run.manager.load()
    assert all(not value.any() for value in run.values().values())
    run.manager.close()
    return str(error.value)


def test_a_difference_on_one_rank_is_refused_by_all_with_one_message(root):
    first, second = run_ranks(load_tied_into_untied, 2, root / "tied, fsdp 2")
    assert first == second
    assert "model.output.weight [251, 8] is in this run, but not in the checkpoint" in first


def save_in_background(folder: Path, mode: str) -> list[bool]:
    original = commit.write_pieces

    def slowly(*args: Any) -> Any:
        time.sleep(0.5)
        return original(*args)

    commit.write_pieces = slowly  # type: ignore[assignment]
    try:
        run = Run(LAYOUTS["tp 2 x fsdp 2"], folder, filled=True, async_mode=mode, last_save_model_only=True)
        state = {"rows": [1, 2]}
        run.manager.save(STEP, state, last=True)
        seen = [(folder / f"step-{STEP}").exists()]
        state["rows"].append(3)
        for value in run.values().values():
            value.fill_(-1.0)
        deadline = time.monotonic() + 30
        busy, there = 0, False
        while not there and time.monotonic() < deadline:
            flag = torch.tensor(float(complete_steps(folder / "model-only") == [STEP]))
            dist.all_reduce(flag, dist.ReduceOp.MIN)  # training goes on, on the default group
            busy, there = busy + 1, bool(flag)
        seen.append(bool(complete_steps(folder)))  # without another call to the manager
        seen.append(busy > 3)
        run.manager.poll()
        run.manager.close()
    finally:
        commit.write_pieces = original
    return seen


@pytest.mark.parametrize("mode", ["async", "async_with_pinned_mem"])
def test_a_background_save_is_what_it_was_at_the_call_and_appears_by_itself(tmp_path, mode):
    assert run_ranks(save_in_background, 4, tmp_path, mode) == [[False, True, True]] * 4
    run = Run(Layout(), tmp_path, filled=False)
    assert run.manager.load()["rows"] == [1, 2]
    assert run.wrong() == []
    exported = Run(Layout(), tmp_path / "own", filled=False, initial_load_path=str(tmp_path / "model-only"))
    exported.manager.load()
    assert exported.wrong(weights_only=True) == []


def fail_in_background(folder: Path) -> tuple[int, str, bool]:
    original = FileSystemWriter.write_data
    if dist.get_rank() == 1:
        FileSystemWriter.write_data = _full_disk  # type: ignore[method-assign]
    try:
        run = Run(LAYOUTS["fsdp 2"], folder, filled=True, async_mode="async")
        run.manager.save(STEP, {})
        for step in range(10_000):
            try:
                run.manager.poll()
            except CheckpointError as error:
                again = run.manager.should_save(STEP, last=True)
                run.manager.close()
                return step, str(error), again
            time.sleep(0.001 * dist.get_rank())  # ranks of unequal speed
    finally:
        FileSystemWriter.write_data = original  # type: ignore[method-assign]
    raise AssertionError("the failure was not told")


def _full_disk(*_args: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "__1_0.distcp")


def test_a_background_failure_reaches_all_ranks_in_the_same_step(tmp_path):
    first, second = run_ranks(fail_in_background, 2, tmp_path)
    assert first == second
    assert "rank 1: [Errno 28] No space left on device" in first[1]
    assert first[2]  # it is not taken for saved
    assert list(tmp_path.iterdir()) == []


def save_with_a_failing_rank(folder: Path) -> str:
    original = FileSystemWriter.write_data
    if dist.get_rank() == 3:
        FileSystemWriter.write_data = _full_disk  # type: ignore[method-assign]
    try:
        run = Run(LAYOUTS["fsdp 4"], folder, filled=True)
        with pytest.raises(CheckpointError) as error:
            run.manager.save(STEP, {})
        run.manager.close()
    finally:
        FileSystemWriter.write_data = original  # type: ignore[method-assign]
    return str(error.value)


def test_a_rank_that_cannot_write_is_named_on_all(tmp_path):
    messages = run_ranks(save_with_a_failing_rank, 4, tmp_path)
    assert len(set(messages)) == 1
    assert "rank 3: [Errno 28] No space left on device" in messages[0]
    assert list(tmp_path.iterdir()) == []


def load_with_a_damaged_newest(folder: Path) -> tuple[list[int], list[list[str]], str]:
    steps, wrong = [], []
    run = Run(LAYOUTS["fsdp 2"], folder, filled=False)
    for _ in range(2):  # a second resume finds the same
        one = run.manager_of(folder, verify_on_load=True)
        steps.append((one.load() or {})["step"])
        wrong.append(run.wrong())
        one.close()
    refused = run.manager_of(folder, verify_on_load=True, load_step=2)
    with pytest.raises(CheckpointRefused) as error:
        refused.load()
    refused.close()
    run.manager.close()
    return steps, wrong, str(error.value)


def test_a_flipped_bit_that_one_rank_finds_sends_all_to_the_older_checkpoint(tmp_path):
    run_ranks(save_two, 2, tmp_path)
    flip(tmp_path / "step-2" / "__1_0.distcp")
    first, second = run_ranks(load_with_a_damaged_newest, 2, tmp_path)
    assert first == second
    assert first[:2] == ([1, 1], [[], []])
    assert "load_step = 2" in first[2]
    assert "__1_0.distcp differs from its checksum" in first[2]


def save_two(folder: Path) -> None:
    run = Run(LAYOUTS["fsdp 2"], folder, filled=True)
    for step in (1, 2):
        run.manager.save(step, {})
    run.manager.close()


def save_three(folder: Path, mode: str) -> None:
    run = Run(LAYOUTS["fsdp 4"], folder, filled=True, keep_latest_k=1, async_mode=mode)
    for step in (8, 9, 10):
        run.manager.save(step, {})
    run.manager.close()


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_a_fresh_nested_folder_and_keep_one(tmp_path, mode):
    folder = tmp_path / "a" / "b" / "checkpoint"
    run_ranks(save_three, 4, folder, mode)
    assert [path.name for path in folder.iterdir()] == ["step-10"]


def save_into_a_file(path: Path) -> str:
    run = Run(LAYOUTS["fsdp 4"], path, filled=True)
    with pytest.raises(CheckpointError) as error:
        run.manager.save(1, {})
    run.manager.close()
    return str(error.value)


def test_a_folder_that_cannot_be_made_is_one_message_on_all(tmp_path):
    path = tmp_path / "checkpoint"
    path.write_text("")
    messages = run_ranks(save_into_a_file, 4, path)
    assert len(set(messages)) == 1
    assert "File exists" in messages[0]
    assert str(path) in messages[0]


def die_while_writing(folder: Path, mode: str) -> None:
    run = Run(LAYOUTS["fsdp 2"], folder, filled=True, async_mode=mode)
    run.manager.save(1, {})
    run.manager.wait()
    if dist.get_rank() == 1:
        FileSystemWriter.write_data = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    run.manager.save(2, {})
    run.manager.close()


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_a_rank_killed_while_writing_ends_the_others_and_leaves_the_last_good_one(tmp_path, mode):
    started = time.monotonic()
    with pytest.raises(RankError):
        run_ranks(die_while_writing, 2, tmp_path, mode, fresh=True)
    assert time.monotonic() - started < 30
    assert complete_steps(tmp_path) == [1]
    assert run_ranks(load_after_a_kill, 2, tmp_path) == [(1, [], True)] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-2"]


def load_after_a_kill(folder: Path) -> tuple[int, list[str], bool]:
    run = Run(LAYOUTS["fsdp 2"], folder, filled=False)
    state = run.manager.load()
    assert state is not None
    wrong = run.wrong()
    run.manager.save(2, {})
    run.manager.close()
    return state["step"], wrong, complete_steps(folder) == [1, 2]
