"""A checkpoint from elsewhere runs no code: hostile indexes, entries and paths are refused, and nothing was run."""

from __future__ import annotations

import io
import os
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

from tests.checkpoint.toy import manager, model, optimizer_of, reseal, saved
from titan.checkpoint import CheckpointRefused
from titan.checkpoint.metadata import read_metadata

pytestmark = pytest.mark.quick


class Hostile:
    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return (os.mkdir, (self.marker,))


def rewrite(folder, change):
    """Replaces the index by a changed one, and seals the manifest over it: what someone who means harm would do."""
    path = folder / ".metadata"
    path.write_bytes(pickle.dumps(change(pickle.loads(path.read_bytes()))))
    reseal(folder)


def load(folder):
    part = model()
    return manager(folder, part, optimizer_of(part)).load()


def test_a_hostile_index_is_refused_by_the_name_of_what_it_would_run(tmp_path):
    saved(tmp_path, [1])
    marker = tmp_path / "ran"

    def inject(metadata):
        metadata.planner_data = Hostile(marker)
        return metadata

    rewrite(tmp_path / "step-1", inject)
    with pytest.raises(CheckpointRefused, match=r"\.metadata is refused: it names posix\.mkdir.*nothing was run"):
        load(tmp_path)
    assert not marker.exists()
    pickle.loads((tmp_path / "step-1" / ".metadata").read_bytes())
    assert marker.exists()  # the plain unpickler does run it


@pytest.mark.parametrize("function", [eval, exec, getattr, os.system, torch.load, pickle.loads])
def test_no_function_is_reached(tmp_path, function):
    class Call:
        def __reduce__(self):
            return (function, ("1",))

    (tmp_path / ".metadata").write_bytes(pickle.dumps(Call()))
    with pytest.raises(CheckpointRefused, match="could run code"):
        read_metadata(tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", ".."])
def test_a_path_that_leaves_the_folder_is_refused(tmp_path, name):
    saved(tmp_path, [1])

    def redirect(metadata):
        index = next(iter(metadata.storage_data))
        metadata.storage_data[index] = _StorageInfo(name, 0, 10)
        return metadata

    rewrite(tmp_path / "step-1", redirect)
    with pytest.raises(CheckpointRefused, match="outside of the folder"):
        load(tmp_path)


def test_an_entry_that_is_not_a_tensor_is_refused(tmp_path):
    saved(tmp_path, [1])

    def add(metadata):
        metadata.state_dict_metadata["model.0.weight"] = BytesStorageMetadata()
        return metadata

    rewrite(tmp_path / "step-1", add)
    with pytest.raises(CheckpointRefused, match=r"model\.0\.weight is not a tensor"):
        load(tmp_path)


def test_an_index_with_a_hole_is_refused(tmp_path):
    saved(tmp_path, [1])

    def cut(metadata):
        metadata.state_dict_metadata["model.0.weight"].chunks.clear()
        return metadata

    rewrite(tmp_path / "step-1", cut)
    with pytest.raises(CheckpointRefused, match=r"does not cover the whole of model\.0\.weight"):
        load(tmp_path)


def test_a_place_that_is_missing_is_refused(tmp_path):
    saved(tmp_path, [1])

    def forget(metadata):
        del metadata.storage_data[MetadataIndex("model.0.weight", [0, 0])]
        return metadata

    rewrite(tmp_path / "step-1", forget)
    with pytest.raises(CheckpointRefused, match=r"does not cover the whole of model\.0\.weight"):
        load(tmp_path)


def test_a_hostile_tensor_file_is_refused(tmp_path):
    saved(tmp_path, [1])
    marker = tmp_path / "ran"
    path = tmp_path / "step-1" / "__0_0.distcp"
    size = path.stat().st_size
    buffer = io.BytesIO()
    torch.save(Hostile(marker), buffer)

    def redirect(metadata):
        for index in metadata.storage_data:
            metadata.storage_data[index] = _StorageInfo("__0_0.distcp", 0, len(buffer.getvalue()))
        return metadata

    path.write_bytes(buffer.getvalue() + bytes(size - len(buffer.getvalue())))
    rewrite(tmp_path / "step-1", redirect)
    with pytest.raises(CheckpointRefused, match="damaged"):
        load(tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize("content", [b"", b"garbage", pickle.dumps({"a": 1}), pickle.dumps(torch.Size([1]))])
def test_a_damaged_index_is_refused(tmp_path, content):
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointRefused, match=r"\.metadata"):
        read_metadata(tmp_path)


def test_every_cut_of_an_index_is_refused(tmp_path):
    saved(tmp_path, [1])
    whole = (tmp_path / "step-1" / ".metadata").read_bytes()
    for length in range(0, len(whole), 97):
        (tmp_path / ".metadata").write_bytes(whole[:length])
        with pytest.raises(CheckpointRefused):
            read_metadata(tmp_path)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_an_index_written_by_torch_itself_is_read(tmp_path):
    values = {f"x.{dtype}": torch.ones(2, 3, dtype=dtype) for dtype in (torch.float32, torch.bfloat16, torch.int64)}
    dcp.save(values, checkpoint_id=tmp_path)
    assert set(read_metadata(tmp_path).state_dict_metadata) == set(values)
