"""Who did not arrive, from the records that watchdogs leave."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from titan.faults.hang import Silence, record_path
from titan.launch import hang

pytestmark = pytest.mark.quick
WAITS = "gloo:all_reduce number 7 of group default_pg, sizes [[3]]"


def leave(folder: Path, rank: int, waits_in: str | None, doing: str = "step 3: the start of the step") -> None:
    path = record_path(folder, rank)
    path.parent.mkdir(exist_ok=True)
    record = Silence(rank, doing, 60.0, waits_in, "train.py:9 in load", 1.0)
    path.write_text(json.dumps(asdict(record)))


def test_without_records_there_was_no_hang(tmp_path):
    assert hang.find(tmp_path, range(4)) is None


def test_a_rank_without_a_record_is_the_one_that_did_not_arrive(tmp_path):
    for rank in (0, 1, 3):
        leave(tmp_path, rank, WAITS)
    found = hang.find(tmp_path, range(4))
    assert found.absent == 2
    assert found.lines == [
        f"ranks 0, 1, 3: step 3: the start of the step, waits in {WAITS}",
        "rank 2: no sign of life; stopped, or stuck in code that does not let Python run",
    ]
    assert hang.message(found).startswith("did not arrive where the others wait (ranks 0, 1, 3: step 3")


def test_a_rank_that_is_in_no_collective_is_the_one_that_did_not_arrive(tmp_path):
    leave(tmp_path, 0, WAITS)
    leave(tmp_path, 1, None, "step 3: data")
    found = hang.find(tmp_path, range(2))
    assert found.absent == 1
    assert found.lines[1] == "rank 1: step 3: data, in no collective, at train.py:9 in load"


def test_ranks_in_different_collectives_are_told_apart(tmp_path):
    leave(tmp_path, 0, WAITS)
    leave(tmp_path, 1, WAITS.replace("7", "8"))
    found = hang.find(tmp_path, range(2))
    assert found.absent is None
    assert len(found.lines) == 2


def test_what_an_earlier_attempt_left_is_cleared(tmp_path):
    leave(tmp_path, 0, WAITS)
    hang.clear(tmp_path, range(2))
    assert hang.find(tmp_path, range(2)) is None
