"""Saving in the background: training goes on while the writer is slow, one save at a time, a failure ends the run."""

from __future__ import annotations

import errno
import shutil
import threading

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from tests.checkpoint.toy import manager, model, optimizer_of, train
from titan.checkpoint import CheckpointError, jobs
from titan.checkpoint.folders import complete_steps
from titan.checkpoint.pieces import piece
from titan.checkpoint.staging import Staging

pytestmark = pytest.mark.quick


class SlowWriter:
    """Holds DCP's writer back until `go` is set; `waits` is set while it does."""

    def __init__(self, monkeypatch, error=None):
        self.go, self.waits, self.most, self.now = threading.Event(), threading.Event(), 0, 0
        original = FileSystemWriter.write_data

        def write(*args):
            self.now += 1
            self.most = max(self.most, self.now)
            self.waits.set()
            assert self.go.wait(30), "training waited for the writer"
            if error is not None:
                raise error
            try:
                return original(*args)
            finally:
                self.now -= 1

        monkeypatch.setattr(FileSystemWriter, "write_data", write)


def poll_until_done(one):
    while one.busy:
        one.poll()
        threading.Event().wait(0.01)


@pytest.mark.parametrize("mode", ["async", "async_with_pinned_mem"])
def test_steps_are_taken_while_the_writer_is_held_back(tmp_path, monkeypatch, mode):
    writer = SlowWriter(monkeypatch)
    part = model()
    optimizer = optimizer_of(part)
    train(part, optimizer, 1)
    wanted = part[0].weight.detach().clone()
    one = manager(tmp_path, part, optimizer, async_mode=mode)
    one.save(1, {})
    assert writer.waits.wait(10)
    for _ in range(5):
        train(part, optimizer, 1)
        one.poll()  # returns at once, and finds nothing done
        assert one.busy
    assert not complete_steps(tmp_path)
    writer.go.set()
    one.close()
    other = model(seed=5)
    manager(tmp_path, other, optimizer_of(other)).load()
    assert torch.equal(other[0].weight, wanted)  # what was at the call, not what training made of it


def test_the_next_save_waits_for_the_one_before_and_says_so(tmp_path, monkeypatch, caplog):
    writer = SlowWriter(monkeypatch)
    monkeypatch.setattr("titan.checkpoint.manager._NOTABLE_SECONDS", 0.05)
    part = model()
    one = manager(tmp_path, part, optimizer_of(part), async_mode="async", interval=2)
    one.save(2, {})
    threading.Timer(0.2, writer.go.set).start()
    one.save(4, {})
    one.close()
    assert writer.most == 1
    assert complete_steps(tmp_path) == [2, 4]
    assert "step 4 waited 0." in caplog.text
    assert "for the save of step 2 to end: writing takes longer than checkpoint.interval = 2 steps" in caplog.text


def test_a_folder_that_is_removed_under_the_writer_is_told_at_the_next_step(tmp_path, monkeypatch):
    writer = SlowWriter(monkeypatch)
    part = model()
    one = manager(tmp_path / "run", part, optimizer_of(part), async_mode="async")
    one.save(1, {})
    assert writer.waits.wait(10)
    shutil.rmtree(tmp_path / "run")
    writer.go.set()
    with pytest.raises(CheckpointError, match=r"writing .*tmp-step-1: .*No such file") as error:
        poll_until_done(one)
    assert error.value.exit_code == 1
    assert one.should_save(1, last=True)
    one.close()


def test_a_failed_background_save_is_told_at_the_end_if_not_before(tmp_path, monkeypatch):
    writer = SlowWriter(monkeypatch, OSError(errno.ENOSPC, "No space left on device"))
    part = model()
    one = manager(tmp_path, part, optimizer_of(part), async_mode="async")
    one.save(1, {}, last=True)
    writer.go.set()
    with pytest.raises(CheckpointError, match="No space left"):
        one.close()
    one.close()  # told once


@pytest.mark.parametrize(("error", "said"), [(None, "was completed"), (OSError("full"), "failed: ")])
def test_a_run_that_fails_lets_the_save_in_flight_end(tmp_path, monkeypatch, caplog, error, said):
    writer = SlowWriter(monkeypatch, error)
    part = model()
    one = manager(tmp_path, part, optimizer_of(part), async_mode="async")
    one.save(1, {})
    threading.Timer(0.1, writer.go.set).start()
    one.settle()
    assert f"the save of step 1 {said}" in caplog.text
    assert complete_steps(tmp_path) == ([1] if error is None else [])


def test_a_writer_that_does_not_end_is_given_up(tmp_path, monkeypatch, caplog):
    writer = SlowWriter(monkeypatch)
    part = model()
    one = manager(tmp_path, part, optimizer_of(part), async_mode="async")
    one.settle()  # nothing in flight
    one.save(1, {})
    one.settle(0.05)
    assert "the save of step 1 is lost" in caplog.text
    writer.go.set()
    one.close()


def test_kept_buffers_are_used_again():
    tensor = torch.arange(6.0)
    kept, fresh = Staging(keep=True), Staging(keep=False)
    places = set()
    for step in range(3):
        tensor.fill_(step)
        (copy,), ready = kept.copy([piece("model.x", tensor)])
        ready()
        assert torch.equal(copy.tensor, tensor)
        places.add(copy.tensor.data_ptr())
        assert fresh.copy([piece("model.x", tensor)])[0][0].tensor.data_ptr() != tensor.data_ptr()
    assert len(places) == 1
    assert places != {tensor.data_ptr()}
    (bigger,), _ = kept.copy([piece("model.x", torch.ones(9))])
    assert bigger.tensor.shape == (9,)


def test_weights_that_are_saved_and_exported_are_copied_once(tmp_path):
    tensor = torch.ones(4)
    one = piece("model.x", tensor)
    todo = [jobs.Job(tmp_path, [one], "{}", 0), jobs.Job(tmp_path, jobs.stored_as([one], torch.bfloat16), "{}", 0)]
    (full, export), _ = jobs.stage(todo, Staging(keep=False))
    assert full.pieces[0].tensor is export.pieces[0].tensor
    assert export.pieces[0].stored is torch.bfloat16
