"""`titan checkpoint verify` and `verify_on_load` find what anybody can do to a file."""

from __future__ import annotations

import random
import shutil

import pytest
import torch

from tests.checkpoint.toy import flip, manager, model, optimizer_of, same, saved, snapshot
from titan.checkpoint import CheckpointRefused
from titan.checkpoint.manifest import BLOCK
from titan.checkpoint.storage import at
from titan.checkpoint.verify import verify

pytestmark = pytest.mark.quick


@pytest.fixture
def step(tmp_path):
    saved(tmp_path, [1])
    return tmp_path / "step-1"


def found(folder):
    return verify(at(folder)).problems


def test_a_good_checkpoint_is_whole(step):
    result = verify(at(step))
    assert (result.problems, result.files, result.checksums) == ([], 3, True)
    assert result.bytes == sum(path.stat().st_size for path in step.iterdir() if path.name != "manifest.json")


def test_a_hundred_random_flips_are_found_and_the_file_is_named(step):
    files = sorted(step.iterdir())
    assert len(files) == 4
    rng = random.Random(7)
    for _ in range(100):
        path = rng.choice(files)
        bit = rng.randrange(8 * path.stat().st_size)
        flip(path, bit)
        problems = found(step)
        assert problems, f"{path.name}: bit {bit} was not found"
        assert all(problem.startswith(path.name) for problem in problems)
        flip(path, bit)
    assert found(step) == []


def test_damage_in_a_big_file_has_a_place(tmp_path):
    part = torch.nn.Linear(2048, 3072, bias=False)  # 24 MiB
    manager(tmp_path, part, torch.optim.SGD(part.parameters())).save(1, {})
    path = tmp_path / "step-1" / "__0_0.distcp"
    assert BLOCK < path.stat().st_size < 2 * BLOCK
    flip(path, 8 * (BLOCK + 5))
    last = path.stat().st_size - 1
    assert found(tmp_path / "step-1") == [
        f"__0_0.distcp differs from its checksum somewhere in bytes {BLOCK} to {last}"
    ]


def test_cut_missing_extra_and_linked_files_are_named(step):
    whole = (step / "__0_0.distcp").read_bytes()
    (step / "__0_0.distcp").write_bytes(whole[:-7])
    assert found(step) == [f"__0_0.distcp has {len(whole) - 7} bytes, the manifest says {len(whole)}"]
    (step / "__0_0.distcp").write_bytes(whole + b"x")
    assert found(step) == [f"__0_0.distcp has {len(whole) + 1} bytes, the manifest says {len(whole)}"]
    (step / "__0_0.distcp").unlink()
    assert found(step) == ["__0_0.distcp is missing"]
    (step / "__0_0.distcp").symlink_to("/etc/hostname")
    assert found(step) == ["__0_0.distcp is a link, which is not followed"]
    (step / "__0_0.distcp").unlink()
    (step / "__0_0.distcp").write_bytes(whole)
    (step / "notes.txt").write_text("mine")
    (step / "folder").mkdir()
    assert found(step) == ["folder is not in the manifest", "notes.txt is not in the manifest"]


def test_a_missing_or_foreign_manifest_is_named(step):
    shutil.copytree(step, step.parent / "step-2")
    assert found(step.parent / "step-2") == ["manifest.json is that of step 1"]
    (step / "manifest.json").unlink()
    assert "manifest.json is missing" in found(step)[0]


def test_a_flip_in_the_values_is_passed_over_only_if_asked(tmp_path, caplog):
    part = model()
    optimizer = optimizer_of(part)
    one = manager(tmp_path, part, optimizer)
    one.save(1, {})
    good = snapshot(part, optimizer)
    one.save(2, {})
    bytes_of_it = (tmp_path / "step-2" / "__0_0.distcp").read_bytes()
    place = bytes_of_it.index(part[0].weight.detach().numpy().tobytes())
    flip(tmp_path / "step-2" / "__0_0.distcp", 8 * place + 1)
    other = model(seed=3)
    its = optimizer_of(other)
    assert manager(tmp_path, other, its, verify_on_load=True).load()["step"] == 1
    assert same(good, snapshot(other, its))
    assert "step-2 is not complete and passed over: __0_0.distcp differs from its checksum" in caplog.text
    with pytest.raises(CheckpointRefused, match=r"load_step = 2: .*__0_0\.distcp differs from its checksum"):
        manager(tmp_path, other, its, verify_on_load=True, load_step=2).load()


def test_an_initial_path_is_verified_too(tmp_path):
    saved(tmp_path / "first", [7, 8])
    flip(tmp_path / "first" / "step-8" / "__0_0.distcp")
    part = model()
    section = {"verify_on_load": True, "initial_load_model_only": False}
    first = manager(tmp_path / "own", part, optimizer_of(part), initial_load_path=str(tmp_path / "first"), **section)
    assert first.load()["step"] == 7
    path = str(tmp_path / "first" / "step-8")
    with pytest.raises(CheckpointRefused, match="differs from its checksum"):
        manager(tmp_path / "own", part, optimizer_of(part), initial_load_path=path, **section).load()
