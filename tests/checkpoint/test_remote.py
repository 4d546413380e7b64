"""The same rules behind a URI, where nothing can be renamed: fsspec's memory file system, in one process."""

from __future__ import annotations

import errno
import uuid

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.checkpoint.toy import manager, model, optimizer_of, same, saved, snapshot, train
from titan.checkpoint import CheckpointError, CheckpointRefused
from titan.checkpoint.folders import complete_steps, incomplete
from titan.checkpoint.storage import at, under
from titan.checkpoint.storage_local import LocalFolder
from titan.checkpoint.verify import verify
from titan.cli import main

pytestmark = pytest.mark.quick
FILES = fsspec.filesystem("memory")


@pytest.fixture
def uri():
    yield f"memory://{uuid.uuid4().hex}/checkpoint"
    FILES.store.clear()
    FILES.pseudo_dirs[:] = [""]


def path_of(uri, *names):
    return "/".join([uri.removeprefix("memory:/"), *names])


def test_a_resumed_run_goes_on_exactly(uri):
    part = model()
    optimizer = optimizer_of(part)
    train(part, optimizer, 3)
    manager(uri, part, optimizer, last_save_model_only=True).save(3, {"rows": 96}, last=True)
    other = model(seed=9)
    its = optimizer_of(other)
    assert manager(uri, other, its, verify_on_load=True).load()["rows"] == 96
    assert same(snapshot(part, optimizer), snapshot(other, its))
    assert complete_steps(uri) == complete_steps(f"{uri}/model-only") == [3]
    fresh = model(seed=4)
    assert manager(f"{uri}-2", fresh, optimizer_of(fresh), initial_load_path=f"{uri}/model-only").load() is None
    assert same(dict(fresh.named_parameters()), dict(part.named_parameters()))


def test_retention_counts_whole_ones_and_removes_the_manifest_first(uri, monkeypatch):
    removed = []
    original = MemoryFileSystem._rm

    def record(self, path):
        removed.append(self._strip_protocol(path).rsplit("/", 2)[-2:])
        original(self, path)

    monkeypatch.setattr(MemoryFileSystem, "_rm", record)
    saved(uri, [8, 9, 10, 11], keep_latest_k=2)
    assert complete_steps(uri) == [10, 11]
    assert not FILES.exists(path_of(uri, "step-8"))
    first = {}
    for step, name in removed:
        first.setdefault(step, name)
    assert first == {"step-8": "manifest.json", "step-9": "manifest.json"}


def test_an_upload_that_was_cut_off_is_not_counted_and_cleared_by_the_next_save_of_that_step(uri, caplog):
    saved(uri, [1, 2])
    FILES.rm_file(path_of(uri, "step-2", "manifest.json"))
    FILES.pipe_file(path_of(uri, "step-2", "__7_0.distcp"), b"of a rank that is no more")
    part = model()
    one = manager(uri, part, optimizer_of(part))
    assert one.load()["step"] == 1
    assert "step-2 is not complete and passed over: it has no manifest.json" in caplog.text
    one.save(2, {})
    assert complete_steps(uri) == [1, 2]
    assert verify(at(uri) / "step-2").problems == []


def test_a_storage_that_fails_leaves_earlier_ones_and_nothing_of_the_new_one(uri, monkeypatch):
    saved(uri, [1])
    original = MemoryFileSystem._open

    def fail(self, path, mode="rb", **options):
        if mode == "wb" and path.endswith("state.json"):
            raise OSError(errno.EIO, "the storage is gone", path)
        return original(self, path, mode=mode, **options)

    monkeypatch.setattr(MemoryFileSystem, "_open", fail)
    part = model()
    one = manager(uri, part, optimizer_of(part), keep_latest_k=1)
    with pytest.raises(CheckpointError, match=r"completing memory://.*/step-2: .*the storage is gone"):
        one.save(2, {})
    monkeypatch.undo()
    assert complete_steps(uri) == [1]
    assert not FILES.exists(path_of(uri, "step-2"))
    assert one.should_save(2, last=True)  # it was not saved


def test_a_file_of_the_wrong_size_is_passed_over(uri):
    saved(uri, [1, 2])
    FILES.pipe_file(path_of(uri, "step-2", "__0_0.distcp"), b"short")
    assert "has 5 bytes" in incomplete(f"{uri}/step-2")
    part = model()
    assert manager(uri, part, optimizer_of(part)).load()["step"] == 1


def test_the_command_works_on_a_uri_and_on_a_run_folder_that_names_one(uri, tmp_path, capsys):
    saved(uri, [1, 2])
    (tmp_path / "config.toml").write_text(f'[checkpoint]\nfolder = "{uri}"\n')
    for path in (uri, str(tmp_path)):
        assert main(["checkpoint", "verify", path]) == 0
        capsys.readouterr()
        assert main(["checkpoint", "list", path]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 4
        assert main(["checkpoint", "show", path]) == 0
        assert f"{at(uri) / 'step-2'}" in capsys.readouterr().out
    data = bytearray(FILES.cat_file(path_of(uri, "step-1", ".metadata")))
    data[5] ^= 4
    FILES.pipe_file(path_of(uri, "step-1", ".metadata"), bytes(data))
    assert main(["checkpoint", "verify", uri]) == 1
    assert ".metadata differs from its checksum" in capsys.readouterr().out


def test_a_folder_means_inside_the_run_folder_unless_it_is_a_uri(tmp_path, uri):
    assert str(under(tmp_path, "checkpoint")) == str(tmp_path / "checkpoint")
    assert str(under(tmp_path, "/elsewhere")) == "/elsewhere"
    assert str(under(tmp_path, uri)).startswith("memory://")
    assert isinstance(at(f"file://{tmp_path}"), LocalFolder)


def test_an_unknown_kind_of_storage_is_refused_by_name():
    with pytest.raises(CheckpointRefused, match="nosuch://bucket/run cannot be used as a checkpoint folder"):
        at("nosuch://bucket/run")
