"""The trainer's last checkpoint: always there, once, before the exit code is 0; and what a restart makes of it."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from tests.distributed import tiny
from titan.checkpoint import CheckpointError
from titan.checkpoint.folders import complete_steps
from titan.runtime import StopRequest
from titan.runtime.errors import DONE, exit_code


def run(folder: Path, steps: int, shape: dict[str, int] | None = None, **checkpoint: object) -> int:
    folder.mkdir(exist_ok=True)
    section = {"enable": True, "interval": 5, "last_save_model_only": False, **checkpoint}
    sections = {
        "checkpoint": section,
        "training": {"steps": steps},
        "model": {"args": {"n_layers": 1, **(shape or {})}},
        "metrics": {"log_freq": 100, "enable_tensorboard": False},
    }
    return tiny.make_trainer(tiny.config(sections, str(folder))).train(StopRequest())


def stamps(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize("mode", ["disabled", "async"])
@pytest.mark.parametrize(
    ("steps", "interval", "wanted"), [(7, 5, [5, 7]), (3, 5, [3]), (4, 1, [1, 2, 3, 4]), (1, 5, [1]), (5, 5, [5])]
)
def test_the_last_step_is_always_saved(tmp_path, steps, interval, wanted, mode):
    assert run(tmp_path, steps, interval=interval, async_mode=mode, keep_latest_k=0) == DONE
    assert complete_steps(tmp_path / "checkpoint") == wanted
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == [f"step-{step}" for step in wanted]


def test_a_finished_run_started_again_is_done_and_rewrites_nothing(tmp_path, caplog):
    assert run(tmp_path, 3, last_save_model_only=True) == DONE
    before = stamps(tmp_path / "checkpoint")
    with caplog.at_level(logging.INFO, "titan"):
        assert run(tmp_path, 3, last_save_model_only=True) == DONE
    assert stamps(tmp_path / "checkpoint") == before
    assert "done at step 3 of 3" in caplog.text


def test_a_longer_run_goes_on_from_the_last_one(tmp_path):
    run(tmp_path, 2)
    assert run(tmp_path, 4) == DONE
    assert complete_steps(tmp_path / "checkpoint") == [2, 4]


def test_a_background_failure_ends_the_run_with_an_exit_code_that_is_not_0(tmp_path, monkeypatch):
    original = FileSystemWriter.write_data
    calls = []

    def fail_at_the_second(*args):
        calls.append(args)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*args)

    monkeypatch.setattr(FileSystemWriter, "write_data", fail_at_the_second)
    with pytest.raises(CheckpointError, match="No space left") as error:
        run(tmp_path, 4, interval=2, async_mode="async")
    assert exit_code(error.value) == 1
    assert complete_steps(tmp_path / "checkpoint") == [2]


def test_a_run_that_fails_keeps_the_save_in_flight(tmp_path, monkeypatch):
    from titan.trainer import Trainer

    original = Trainer.update

    def fail_after_the_save(self, norm):
        if self.progress.step == 2:
            raise RuntimeError("something else broke")
        return original(self, norm)

    monkeypatch.setattr(Trainer, "update", fail_after_the_save)
    with pytest.raises(RuntimeError, match="something else broke"):
        run(tmp_path, 4, interval=2, async_mode="async")
    assert complete_steps(tmp_path / "checkpoint") == [2]


def test_weights_of_another_model_with_the_same_shapes_are_told(tmp_path, caplog):
    run(tmp_path / "first", 1)
    path = str(tmp_path / "first" / "checkpoint")
    run(tmp_path / "same", 1, initial_load_path=path)
    assert "initial weights" not in caplog.text
    run(tmp_path / "other", 1, {"n_heads": 2, "n_kv_heads": 1}, initial_load_path=path)
    assert "initial weights: model.args.n_heads 4 -> 2; the shapes are the same" in caplog.text
