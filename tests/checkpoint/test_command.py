"""`titan checkpoint list | show | verify`: what they say and return, for each kind of path, with no torch for two."""

from __future__ import annotations

import json
import os
import pickle
import shutil

import pytest
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from tests.checkpoint.toy import flip, manager, model, optimizer_of, reseal
from titan.cli import main

pytestmark = pytest.mark.quick
STATE = {
    "train_state": {"step": 9, "tokens": 9000, "seed": 1},
    "fingerprints": {"data": "aa11", "tokenizer": "bb22"},
    "layout": "dp_shard 2",
    "config": "[job]",
}


@pytest.fixture
def run(tmp_path):
    part = model()
    one = manager(tmp_path / "saves", part, optimizer_of(part), last_save_model_only=True)
    one.save(9, STATE)
    one.save(10, STATE, last=True)
    one.close()
    (tmp_path / "config.toml").write_text('[checkpoint]\nfolder = "saves"\n')
    return tmp_path


def say(capsys, *words):
    code = main(["checkpoint", *map(str, words)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_list_shows_each_with_layout_and_tokens_and_why_one_is_not_complete(run, capsys):
    (run / "saves" / ".tmp-step-12").mkdir()
    (run / "saves" / "step-11").mkdir()
    (run / "saves" / "notes").mkdir()
    flip(run / "saves" / "step-9" / "state.json")
    code, out, _ = say(capsys, "list", run)
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == str(run / "saves")
    assert "step-9 is not complete: state.json differs from its checksum" in lines[2]
    assert "9,000  dp_shard 2" in lines[3]
    assert "cut off" in lines[4]
    assert lines[5].endswith("weights alone")
    assert ".tmp-step-12 is not complete: it is being written, or a crash left it" in lines[6]
    assert len(lines) == 7


@pytest.mark.parametrize("path", [".", "saves", "saves/step-10"])
def test_every_kind_of_path_is_understood(run, capsys, path):
    code, out, _ = say(capsys, "list", run / path, "--json")
    (row,) = [row for row in json.loads(out) if row["step"] == 10 and not row["weights_only"]]
    assert code == 0
    assert row["complete"] is True
    assert (row["tokens"], row["layout"]) == (9000, "dp_shard 2")
    size = sum(file.stat().st_size for file in (run / "saves" / "step-10").iterdir())
    assert (row["path"], row["bytes"]) == (str(run / "saves" / "step-10"), size)
    assert json.loads(say(capsys, "show", run / path, "--json")[1])["path"] == row["path"]
    assert say(capsys, "verify", run / path)[0] == 0


def test_show_names_keys_shapes_dtypes_fingerprints_and_totals(run, capsys):
    code, out, _ = say(capsys, "show", run)
    assert code == 0
    for words in ("model.0.weight [6, 4] float32", "fingerprints data aa11", "model 5 tensors, 60 values, 240 B"):
        assert words in " ".join(out.split())
    shown = json.loads(say(capsys, "show", run, "--json")[1])
    assert shown["totals"]["optimizer"] == {"tensors": 15, "values": 125, "bytes": 500}
    assert {"key": "model.2.weight", "shape": [3, 6], "dtype": "float32", "boxes": 1, "bytes": 72} in shown["tensors"]
    assert set(shown["files"]) == {".metadata", "__0_0.distcp", "state.json"}


def test_verify_names_the_file_and_returns_1(run, capsys):
    flip(run / "saves" / "step-9" / "__0_0.distcp")
    code, out, _ = say(capsys, "verify", run)
    assert code == 1
    assert f"{run / 'saves' / 'step-9'}: damaged" in out
    assert "__0_0.distcp differs from its checksum somewhere in bytes 0 to " in out
    assert f"{run / 'saves' / 'step-10'}: whole, 3 files" in out
    results = json.loads(say(capsys, "verify", run, "--json")[1])
    assert [bool(one["problems"]) for one in results] == [True, False, False]


def test_nothing_there_is_2(tmp_path, capsys):
    for words in (("list", tmp_path / "no"), ("verify", tmp_path), ("show", tmp_path)):
        code, out, err = say(capsys, *words)
        assert (code, out) == (2, "")
        assert str(tmp_path) in err
    (tmp_path / "file").write_text("")
    assert say(capsys, "list", tmp_path / "file")[0] == 2
    assert say(capsys, "list", tmp_path)[1] == f"no checkpoints in {tmp_path}\n"


class Runs:
    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return (os.mkdir, (self.marker,))


def hostile_pickle(metadata, marker):
    metadata.planner_data = Runs(marker)


def hostile_entry(metadata, _marker):
    metadata.state_dict_metadata["model.0.weight"] = BytesStorageMetadata()


def hostile_path(metadata, _marker):
    metadata.storage_data[next(iter(metadata.storage_data))] = _StorageInfo("../../secret", 0, 10)


def absolute_path(metadata, _marker):
    metadata.storage_data[next(iter(metadata.storage_data))] = _StorageInfo("/etc/passwd", 0, 10)


def unlisted_path(metadata, _marker):
    metadata.storage_data[next(iter(metadata.storage_data))] = _StorageInfo("manifest.json", 0, 10)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (hostile_pickle, "names posix.mkdir"),
        (hostile_entry, "model.0.weight is not a tensor"),
        (hostile_path, "points to '../../secret', outside of the folder"),
        (absolute_path, "points to '/etc/passwd', outside of the folder"),
        (unlisted_path, "points to manifest.json, which is not in the manifest"),
    ],
)
def test_hostile_indexes_are_refused_by_show_verify_and_load_and_nothing_runs(run, capsys, change, text):
    folder, marker = run / "saves" / "step-10", run / "ran"
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata, marker)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    reseal(folder)
    code, _, err = say(capsys, "show", folder)
    assert code == 2
    assert text in err
    code, out, _ = say(capsys, "verify", folder)
    assert code == 1
    assert f".metadata is refused: {'it ' * text.startswith('names')}" in out
    assert text in out
    part = model()
    with pytest.raises(Exception, match=r"\.metadata is refused") as error:
        manager(run / "saves", part, optimizer_of(part)).load()
    assert text in str(error.value)
    assert not marker.exists()


def test_hostile_manifests_are_refused_by_show_and_verify(run, capsys):
    folder = run / "saves" / "step-10"
    manifest = json.loads((folder / "manifest.json").read_text())
    old = {"format": 1, "step": 10, "files": {**manifest["files"], "../../../etc/passwd": {"bytes": 3}}}
    (folder / "manifest.json").write_text(json.dumps(old))
    code, _, err = say(capsys, "show", folder)
    assert code == 2
    assert "names '../../../etc/passwd', outside of the folder" in err
    code, out, _ = say(capsys, "verify", folder)
    assert code == 1
    assert "outside of the folder" in out


def test_a_link_that_leaves_the_checkpoint_is_refused(run, capsys, tmp_path):
    folder = run / "saves" / "step-10"
    shutil.move(folder / "__0_0.distcp", tmp_path / "secret")
    (folder / "__0_0.distcp").symlink_to(tmp_path / "secret")
    assert "__0_0.distcp is a link, which is not followed" in say(capsys, "show", folder)[2]
    assert "__0_0.distcp is a link, which is not followed" in say(capsys, "verify", folder)[1]
