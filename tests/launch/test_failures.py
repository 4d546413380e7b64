"""Which failure is the first, from what torch elastic hands over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from titan.launch.failures import Failure, first

pytestmark = pytest.mark.quick
LOG = Path("log/rank.txt")


def _failure(tmp_path: Path, rank: int, code: int, *, ended: float, by_us: bool = False, **more: object) -> Failure:
    file = tmp_path / f"{rank}.json"
    if more:
        extra = {"py_callstack": "Traceback", "timestamp": "100", **more}
        file.write_text(json.dumps({"message": {"message": f"error of {rank}", "extraInfo": extra}}))
    found = ProcessFailure(local_rank=rank, pid=1, exitcode=code, error_file=str(file))
    return Failure.of(rank, found, ended=ended, by_us=by_us, log=LOG)


def test_within_one_second_the_exact_time_decides(tmp_path):
    late = _failure(tmp_path, 0, 1, ended=100.9, time=100.8)
    early = _failure(tmp_path, 1, 1, ended=100.9, time=100.2)
    assert first([late, early]) is early


def test_error_about_a_peer_comes_after_the_peer_however_late_that_is_seen(tmp_path):
    peer = _failure(tmp_path, 0, 1, ended=100.3, time=100.2, about_a_peer=True)
    killed = _failure(tmp_path, 1, -9, ended=100.4)
    ended_by_us = _failure(tmp_path, 2, -9, ended=100.1, by_us=True)
    found = first([peer, killed, ended_by_us])
    assert found is killed
    assert "killed by SIGKILL" in found.message


def test_report_ends_with_error_rank_and_log(tmp_path):
    report = _failure(tmp_path, 3, 1, ended=1, time=1.0).report()
    assert report.splitlines() == ["Traceback", "titan: rank 3 failed: error of 3", "titan: its log: log/rank.txt"]


def test_message_for_the_user_comes_without_traceback(tmp_path):
    assert "Traceback" not in _failure(tmp_path, 0, 2, ended=1, time=1.0, for_the_user=True).report()


def test_file_of_another_writer_is_understood(tmp_path):
    failure = _failure(tmp_path, 0, 1, ended=7.0, timestamp="5")
    assert failure.time == 5.0


@pytest.mark.parametrize(
    ("code", "launcher", "final"), [(1, 1, False), (2, 2, True), (3, 3, True), (-9, 1, False), (7, 1, False)]
)
def test_exit_codes_that_a_restart_would_repeat_are_passed_on(tmp_path, code, launcher, final):
    failure = _failure(tmp_path, 0, code, ended=1)
    assert (failure.launcher_exit_code, failure.is_final) == (launcher, final)


def test_failure_travels_between_nodes(tmp_path):
    failure = _failure(tmp_path, 0, 1, ended=1, time=1.5)
    assert Failure.from_json(failure.to_json()) == failure
