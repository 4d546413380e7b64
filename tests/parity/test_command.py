"""`titan parity` as a user runs it: green layouts, what is left out or refused, and that each fault turns it red.

Every case runs real processes on the trainer; the faults are those that real trainers had.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from titan.cli import main
from titan.parity.faults import NAMES
from titan.runtime.errors import DONE, FAILED, REFUSED

LAYOUTS = "one process; tp=2; dp_shard=2,accumulation=2; pp=2,schedule=GPipe; dp_replicate=2,training.max_norm=0.01"


def test_layouts_train_like_one_process_and_the_document_says_so(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["parity", str(config), "--layouts", LAYOUTS, "--steps", "3", "--json"]) == DONE
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert found["ok"]
    assert [row["layout"] for row in found["layouts"]] == [
        "one process",
        *(part.strip() for part in LAYOUTS.split(";")[1:]),
    ]
    for row in found["layouts"]:
        assert row["initial"] is True
        assert 0 < row["gradients"]["value"] < 1e-5, "not the same numbers, which would mean that nothing ran"
        assert row["failed"] == []
    assert [row["layout"] for row in found["noise"]] == [
        "noise floor",
        "noise floor for dp_replicate=2,training.max_norm=0.01",
    ], "other numbers have an oracle of their own"
    assert "[5/5]" in told.err, "a line a layout"


@pytest.mark.parametrize("fault", NAMES)
def test_a_fault_turns_the_layout_red_and_names_it(
    fault: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["parity", str(config), "--layouts", "dp_shard=2", "--steps", "2", "--inject", fault]
    assert main(argv) == FAILED
    told = capsys.readouterr().out
    assert "failed: dp_shard=2" in told
    assert "FAILED" in told


def test_a_layout_that_raises_is_a_row_with_the_first_error(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["parity", str(config), "--layouts", "tp=2,compile=no_such_backend; dp_shard=2", "--steps", "1", "--json"]
    assert main(argv) == FAILED
    bad, good = json.loads(capsys.readouterr().out)["layouts"]
    assert bad["failed"] == ["error"]
    assert "failed first" in bad["error"]
    assert "no_such_backend" in bad["error"]
    assert good["failed"] == [], "the others are run all the same"


@pytest.mark.parametrize(
    ("layouts", "message"),
    [
        ("schedul=GPipe", "did you mean schedule"),
        ("tp=3; dp_shard=2", "n_heads = 4 does not divide by tensor_parallel_degree = 3"),
        ("dp_shard=2,accumulation=3", "cannot be taken in that many equal parts"),
    ],
)
def test_layouts_that_the_user_names_are_refused_before_anything_runs(
    layouts: str, message: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["parity", str(config), "--layouts", layouts]) == REFUSED
    told = capsys.readouterr()
    assert message in told.err
    assert told.out == ""


def test_what_the_model_cannot_take_is_left_out_of_the_default_list(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("titan.parity.layouts.DEFAULT", ("tp=3", "dp_shard=2", "pp=4,schedule=DualPipeV"))
    assert main(["parity", str(config), "--steps", "1"]) == DONE
    told = capsys.readouterr().out
    assert "left out: tp=3" in told
    assert "left out: pp=4,schedule=DualPipeV" in told, "two layers are no eight stages"
    assert "all 1 layouts train like one process" in told
