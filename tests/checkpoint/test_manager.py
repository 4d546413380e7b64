"""Saving and going on in one process: what is kept exactly, what comes from the config, when a save is due."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD

from tests.checkpoint.toy import manager, model, optimizer_of, same, saved, snapshot, steps_on_disk, train
from titan.checkpoint import CheckpointError, CheckpointManager, CheckpointRefused
from titan.config.schema_checkpoint import Checkpoint
from titan.parallelisms.parameters import NamedParameter

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("fused", [False, True])
def test_a_resumed_run_goes_on_exactly(tmp_path, fused):
    part = model()
    optimizer = optimizer_of(part, fused=fused)
    train(part, optimizer, 3)
    manager(tmp_path, part, optimizer).save(3, {"rows": 96, "text": "x = 1"})
    at_save = snapshot(part, optimizer)

    other = model(seed=9)
    its = optimizer_of(other, fused=fused)
    state = manager(tmp_path, other, its).load()
    assert state is not None
    assert (state["step"], state["rows"], state["text"]) == (3, 96, "x = 1")
    assert state["torch"] == torch.__version__
    assert same(at_save, snapshot(other, its))
    for one, its_optimizer in ((part, optimizer), (other, its)):
        train(one, its_optimizer, 2, seed=5)
    assert same(snapshot(part, optimizer), snapshot(other, its))


def test_hyper_parameters_come_from_the_config(tmp_path):
    saved(tmp_path, [1])
    part = model()
    optimizer = optimizer_of(part, lr=0.5, weight_decay=0.0, betas=(0.5, 0.6))
    manager(tmp_path, part, optimizer).load()
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.param_groups[0]["weight_decay"] == 0.0
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.6)


def test_momentum_of_sgd_is_kept(tmp_path):
    part = model()
    optimizer = SGD(part.parameters(), lr=0.01, momentum=0.9)
    train(part, optimizer, 2)
    manager(tmp_path, part, optimizer).save(2, {})
    other = model(seed=4)
    its = SGD(other.parameters(), lr=0.01, momentum=0.9)
    manager(tmp_path, other, its).load()
    assert same(snapshot(part, optimizer), snapshot(other, its))


def test_a_save_before_the_first_step_leaves_training_as_it_was(tmp_path):
    part, plain = model(), model()
    optimizer, its = optimizer_of(part), optimizer_of(plain)
    part(torch.ones(1, 4)).sum().backward()
    gradient = part[0].weight.grad.clone()
    manager(tmp_path, part, optimizer).save(0, {})
    assert torch.equal(part[0].weight.grad, gradient)
    assert same(dict(part.named_parameters()), dict(plain.named_parameters()))
    optimizer.zero_grad()
    train(part, optimizer, 2)
    train(plain, its, 2)
    assert same(snapshot(part, optimizer), snapshot(plain, its))


def test_nothing_to_load_is_a_fresh_start(tmp_path):
    part = model()
    assert manager(tmp_path / "none", part, optimizer_of(part)).load() is None
    assert not (tmp_path / "none").exists()


def test_due_steps():
    def due(step: int, last: bool = False, **section: object) -> bool:
        part = model()
        return manager(Path("unused"), part, optimizer_of(part), **{"interval": 5, **section}).should_save(step, last)

    assert [step for step in range(1, 12) if due(step)] == [5, 10]
    assert due(7, last=True)
    assert [step for step in range(1, 7) if due(step, enable_first_step_checkpoint=True)] == [1, 5]
    assert not due(5, load_only=True)
    assert not due(7, last=True, load_only=True)
    assert not due(5, enable=False)


def test_a_step_is_saved_once_and_a_finished_run_rewrites_nothing(tmp_path):
    part = model()
    optimizer = optimizer_of(part)
    one = manager(tmp_path, part, optimizer, interval=2, last_save_model_only=True)
    one.save(2, {})
    assert not one.should_save(2)
    assert one.should_save(2, last=True)  # the export is still to come
    one.save(2, {}, last=True)
    assert not one.should_save(2, last=True)
    written = (tmp_path / "step-2" / "state.json").stat().st_mtime_ns
    again = manager(tmp_path, part, optimizer, interval=2, last_save_model_only=True)
    assert again.load()["step"] == 2
    assert not again.should_save(2, last=True)
    assert (tmp_path / "step-2" / "state.json").stat().st_mtime_ns == written


def test_an_older_step_on_request_and_what_was_loaded_is_said(tmp_path, caplog):
    saved(tmp_path, [1, 2, 3])
    part = model()
    with caplog.at_level(logging.INFO, "titan"):
        state = manager(tmp_path, part, optimizer_of(part), load_step=2).load()
    assert state["rows"] == 20
    assert f"step 2 from {tmp_path / 'step-2'}" in caplog.text
    assert "goes up to 3" in caplog.text


def test_a_step_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    saved(tmp_path, [1, 2])
    part = model()
    with pytest.raises(CheckpointRefused, match=r"load_step = 5: .* complete are: 1, 2"):
        manager(tmp_path, part, optimizer_of(part), load_step=5).load()
    with pytest.raises(CheckpointRefused, match="complete are: none"):
        manager(tmp_path / "empty", part, optimizer_of(part), load_step=5).load()


def test_other_data_is_refused_unless_allowed(tmp_path, caplog):
    part = model()
    optimizer = optimizer_of(part)
    manager(tmp_path, part, optimizer).save(1, {"fingerprints": {"data": "aa", "tokenizer": "tt"}})
    assert manager(tmp_path, part, optimizer).load({"data": "aa", "tokenizer": "tt"})
    with pytest.raises(
        CheckpointRefused, match=r"data: aa in the checkpoint, bb in this run.*dump_folder.*allow_other_data"
    ):
        manager(tmp_path, part, optimizer).load({"data": "bb", "tokenizer": "tt"})
    assert manager(tmp_path, part, optimizer, allow_other_data=True).load({"data": "bb", "tokenizer": "tt"})
    assert "trained on other data" in caplog.text


def test_excluded_parts_are_not_loaded(tmp_path):
    part = model()
    optimizer = optimizer_of(part)
    train(part, optimizer, 2)
    manager(tmp_path, part, optimizer).save(2, {"dataloader": {"rows": 8}, "train_state": {"tokens": 9}})
    other = model(seed=3)
    its = SGD(other.parameters(), lr=0.1)  # another optimizer: its state could not be loaded
    state = manager(tmp_path, other, its, exclude_from_loading=["optimizer", "dataloader"]).load({"data": "other"})
    assert state["train_state"] == {"tokens": 9}
    assert "dataloader" not in state
    assert torch.equal(other[0].weight, part[0].weight)


def test_initial_path_gives_weights_and_the_own_folder_wins_afterwards(tmp_path, caplog):
    saved(tmp_path / "first", [7])
    own, section = tmp_path / "own", {"initial_load_path": str(tmp_path / "first")}
    part = model(seed=2)
    optimizer = optimizer_of(part)
    one = manager(own, part, optimizer, **section)
    assert one.load() is None  # begins at step 0
    assert not optimizer.state
    start = part[0].weight.detach().clone()
    assert not torch.equal(start, model(seed=2)[0].weight)

    restarted = model(seed=2)  # a crash before the first save of its own falls back to the path
    manager(own, restarted, optimizer_of(restarted), **section).load()
    assert torch.equal(restarted[0].weight, start)

    train(part, optimizer, 1)
    one.save(1, {"rows": 3})
    state = manager(own, part, optimizer, **section).load()
    assert (state["step"], state["rows"]) == (1, 3)
    assert "is not used: this run has checkpoints" in caplog.text


def test_initial_path_can_give_everything(tmp_path):
    saved(tmp_path / "first", [7])
    part = model(seed=2)
    optimizer = optimizer_of(part)
    path = str(tmp_path / "first" / "step-7")
    one = manager(tmp_path / "own", part, optimizer, initial_load_path=path, initial_load_model_only=False)
    assert one.load()["rows"] == 70
    assert optimizer.state[part[0].weight]["step"] == 1
    assert one.should_save(7, last=True)  # that step is not in the own folder


def test_initial_path_without_checkpoint_is_refused(tmp_path):
    part = model()
    for path, text in ((tmp_path / "missing", "no such folder"), (tmp_path, "nor a folder with complete step-N")):
        with pytest.raises(CheckpointRefused, match=text):
            manager(tmp_path / "own", part, optimizer_of(part), initial_load_path=str(path)).load()


def test_export_has_its_dtype_leaves_the_weights_alone_and_can_be_started_from(tmp_path):
    part = model()
    optimizer = optimizer_of(part)
    train(part, optimizer, 1)
    before = snapshot(part, optimizer)
    one = manager(tmp_path, part, optimizer, last_save_model_only=True, export_dtype="bfloat16")
    one.save(1, {}, last=True)
    assert same(before, snapshot(part, optimizer))
    assert steps_on_disk(tmp_path) == ["model-only", "step-1"]

    other = model(seed=5)
    path = str(tmp_path / "model-only" / "step-1")
    manager(tmp_path / "own", other, optimizer_of(other), initial_load_path=path).load()
    assert torch.equal(other[0].weight, part[0].weight.to(torch.bfloat16).float())
    assert other[0].weight.dtype == torch.float32
    with pytest.raises(CheckpointRefused, match="holds weights alone"):
        manager(
            tmp_path / "own", other, optimizer_of(other), initial_load_path=path, initial_load_model_only=False
        ).load()


def test_every_difference_is_named_and_nothing_is_overwritten(tmp_path):
    saved(tmp_path, [1])
    wide = model(width=8)
    del wide[2]
    wide.append(nn.Linear(8, 3, bias=True))
    before = {name: one.detach().clone() for name, one in wide.named_parameters()}
    with pytest.raises(CheckpointRefused) as error:
        manager(tmp_path, wide, optimizer_of(wide)).load()
    text = str(error.value)
    assert "model.0.weight is [6, 4] in the checkpoint and [8, 4] in this run" in text
    assert "model.2.bias [3] is in this run, but not in the checkpoint" in text
    assert same(before, {name: one.detach() for name, one in wide.named_parameters()})


def test_a_bigger_checkpoint_is_refused(tmp_path):
    saved(tmp_path, [1])
    small = model()
    del small[2]
    with pytest.raises(CheckpointRefused, match=r"model\.2\.weight is in the checkpoint, but not in this run"):
        manager(tmp_path, small, optimizer_of(small)).load()


def test_other_dtype_is_refused_on_resume(tmp_path):
    saved(tmp_path, [1])
    half = model().to(torch.bfloat16)
    text = r"model\.0\.weight is float32 in the checkpoint and bfloat16"
    with pytest.raises(CheckpointRefused, match=text):
        manager(tmp_path, half, optimizer_of(half)).load()


def test_another_optimizer_is_refused_with_the_way_out(tmp_path):
    saved(tmp_path, [1])
    part = model()
    with pytest.raises(
        CheckpointRefused, match=r'exp_avg is in the checkpoint.*add "optimizer" to checkpoint\.exclude'
    ):
        manager(tmp_path, part, SGD(part.parameters(), lr=0.1)).load()


def test_state_must_be_json_and_not_the_managers_own(tmp_path):
    part = model()
    one = manager(tmp_path, part, optimizer_of(part))
    with pytest.raises(TypeError, match="Tensor"):
        one.save(1, {"x": torch.ones(1)})
    with pytest.raises(ValueError, match="torch"):
        one.save(1, {"torch": "mine"})
    assert not tmp_path.exists() or steps_on_disk(tmp_path) == []


def test_a_folder_that_is_a_file_is_one_clear_error(tmp_path):
    path = tmp_path / "checkpoint"
    path.write_text("")
    part = model()
    with pytest.raises(CheckpointError, match="is not a folder"):
        manager(path, part, optimizer_of(part)).load()
    with pytest.raises(CheckpointError, match=r"creating .*File exists"):
        manager(path, part, optimizer_of(part)).save(1, {})


def test_the_files_are_torchs_own_format(tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    saved(tmp_path, [1])
    dcp_to_torch_save(tmp_path / "step-1", tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert whole["model.0.weight"].shape == (6, 4)
    assert json.loads((tmp_path / "step-1" / "state.json").read_text())["rows"] == 10


def test_the_second_copy_of_a_tied_parameter_is_loaded_but_not_saved(tmp_path):
    first, second = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.full((2, 3), 5.0))
    optimizer = optimizer_of(nn.ParameterList([first, second]))
    named = [NamedParameter("embed.weight", first), NamedParameter("embed.weight", second, counted=False)]
    one = CheckpointManager(Checkpoint(enable=True), tmp_path, named, optimizer)
    one.save(1, {})
    with torch.no_grad():
        first.zero_()
        second.zero_()
    assert one.load()["step"] == 1
    assert torch.equal(first, torch.ones(2, 3))
    assert torch.equal(second, torch.ones(2, 3))
