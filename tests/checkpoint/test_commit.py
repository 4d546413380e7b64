"""What becomes visible, when, and what is removed: incomplete folders, failing disks, retention among foreign names."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from tests.checkpoint.toy import flip, manager, model, optimizer_of, saved, steps_on_disk
from titan.checkpoint import CheckpointError, CheckpointRefused
from titan.checkpoint.folders import complete_steps, incomplete, superseded

pytestmark = pytest.mark.quick


def test_a_kill_between_the_renames_of_a_rewritten_step_is_undone(tmp_path):
    saved(tmp_path, [1])
    (tmp_path / "step-1").rename(tmp_path / ".old-step-1")
    part = model()
    assert manager(tmp_path, part, optimizer_of(part)).load()["step"] == 1
    assert steps_on_disk(tmp_path) == ["step-1"]


def test_incomplete_folders_are_passed_over_with_a_notice(tmp_path, caplog):
    saved(tmp_path, [8, 9, 10, 11, 12, 13])
    (tmp_path / "step-13" / "manifest.json").unlink()
    (tmp_path / "step-12" / "__0_0.distcp").write_bytes(b"short")
    (tmp_path / "step-11" / ".metadata").unlink()
    (tmp_path / "step-10" / "manifest.json").write_text("{")
    (tmp_path / "step-14").mkdir()
    (tmp_path / "step-15").write_text("a file")
    part = model()
    assert manager(tmp_path, part, optimizer_of(part)).load()["step"] == 9
    for step, reason in ((10, "damaged"), (11, "missing"), (12, "has 5 bytes"), (13, "cut off"), (14, "cut off")):
        assert any(f"step-{step} " in line and reason in line for line in caplog.messages)


def test_a_renamed_checkpoint_is_not_another_step(tmp_path):
    saved(tmp_path, [1, 2])
    (tmp_path / "step-2").rename(tmp_path / "step-30")
    assert complete_steps(tmp_path) == [1]


def test_retention_is_numeric_and_touches_only_our_own(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    saved(elsewhere, [3])
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "step-abc").mkdir()
    (folder / "step-2-backup").mkdir()
    (folder / "step-007").mkdir()
    (folder / "step-4").mkdir()  # of our name, but nothing of ours in it
    (folder / "notes.txt").write_text("keep me")
    (folder / "step-3").symlink_to(elsewhere / "step-3")
    foreign = {"notes.txt", "step-007", "step-2-backup", "step-3", "step-4", "step-abc"}
    saved(folder, [8, 9, 10], keep_latest_k=2)
    assert set(steps_on_disk(folder)) == foreign | {"step-9", "step-10"}
    saved(folder, [11], keep_latest_k=1)
    assert set(steps_on_disk(folder)) == foreign | {"step-11"}
    assert complete_steps(elsewhere) == [3]


def test_keep_zero_keeps_all_and_exports_are_not_counted(tmp_path):
    saved(tmp_path, [1, 2, 3], keep_latest_k=0)
    assert complete_steps(tmp_path) == [1, 2, 3]
    part = model()
    one = manager(tmp_path, part, optimizer_of(part), keep_latest_k=1, last_save_model_only=True)
    one.save(4, {}, last=True)
    one.save(5, {}, last=True)
    assert complete_steps(tmp_path) == [5]
    assert complete_steps(tmp_path / "model-only") == [4, 5]


def test_what_was_just_written_is_kept_even_below_older_steps():
    assert superseded([10, 20, 30, 15], keep=2, written=15) == [10]
    assert superseded([9, 10], keep=1, written=10) == [9]
    assert superseded([9, 10], keep=0, written=10) == []


def test_a_failing_disk_is_one_message_and_earlier_ones_stay(tmp_path, monkeypatch):
    saved(tmp_path, [1])

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "__0_0.distcp")

    monkeypatch.setattr(FileSystemWriter, "write_data", full)
    part = model()
    one = manager(tmp_path, part, optimizer_of(part), keep_latest_k=1)
    with pytest.raises(CheckpointError, match=r"writing .*tmp-step-2: .*No space left on device.*__0_0"):
        one.save(2, {})
    assert steps_on_disk(tmp_path) == ["step-1"]
    assert one.should_save(2, last=True)  # it was not saved


def test_an_undeletable_old_checkpoint_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    saved(tmp_path, [1])
    monkeypatch.setattr(Path, "rename", _refuse_step_1(Path.rename))
    saved(tmp_path, [2], keep_latest_k=1)
    assert complete_steps(tmp_path) == [1, 2]
    assert "step-1 could not be removed" in caplog.text


def _refuse_step_1(rename):
    def refuse(self, target):
        if self.name == "step-1":
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return rename(self, target)

    return refuse


@pytest.mark.parametrize("name", ["state.json", ".metadata", "manifest.json"])
def test_a_flipped_bit_in_a_small_file_is_seen_at_every_load(tmp_path, caplog, name):
    saved(tmp_path, [1, 2])
    flip(tmp_path / "step-2" / name)
    part = model()
    assert manager(tmp_path, part, optimizer_of(part)).load()["step"] == 1
    assert f"step-2 is not complete and passed over: {'its ' if name == 'manifest.json' else ''}{name}" in caplog.text


def test_where_every_checkpoint_is_damaged_the_run_is_not_begun_anew(tmp_path):
    saved(tmp_path, [1, 2])
    (tmp_path / "step-3").mkdir()  # unfinished, so nothing is lost with it
    flip(tmp_path / "step-1" / "state.json")
    flip(tmp_path / "step-2" / ".metadata")
    part = model()
    with pytest.raises(
        CheckpointRefused, match=r"(?s)every checkpoint.*step-1: state.*step-2: \.metadata.*begin anew"
    ) as e:
        manager(tmp_path, part, optimizer_of(part)).load()
    assert "step-3" not in str(e.value)
    with pytest.raises(CheckpointRefused, match="every checkpoint"):
        manager(tmp_path, part, optimizer_of(part), initial_load_path=str(tmp_path)).load()
    with pytest.raises(CheckpointRefused, match=r"load_step = 1: .*is damaged: state\.json differs"):
        manager(tmp_path, part, optimizer_of(part), load_step=1).load()


def test_where_only_unfinished_ones_are_a_fresh_start_is_made(tmp_path):
    (tmp_path / "step-3").mkdir()
    part = model()
    assert manager(tmp_path, part, optimizer_of(part)).load() is None


def test_a_damaged_step_that_was_asked_for_is_refused_though_others_are_good(tmp_path):
    saved(tmp_path, [1, 2])
    flip(tmp_path / "step-2" / "state.json")
    part = model()
    with pytest.raises(CheckpointRefused, match=r"load_step = 2: .*state\.json differs.*complete are: 1"):
        manager(tmp_path, part, optimizer_of(part), load_step=2).load()


def test_links_inside_a_checkpoint_are_not_followed(tmp_path):
    saved(tmp_path, [1])
    for name in ("__0_0.distcp", "state.json"):
        path = tmp_path / "step-1" / name
        path.rename(tmp_path / name)
        path.symlink_to(tmp_path / name)
        assert f"{name} is a link" in incomplete(tmp_path / "step-1")
        (tmp_path / name).replace(path)
