"""What the launcher does when a worker fails: the first error last, its rank, its log, and nothing left behind."""

from __future__ import annotations

import time

import pytest

from tests.launch.conftest import is_gone_within


def test_first_error_and_its_rank_are_the_last_lines(launch):
    run = launch("raise")
    code, out, err = run.end()
    assert code == 1
    assert err.splitlines()[-2:] == [
        "titan: rank 1 failed: ValueError: boom",
        f"titan: its log: {run.folder}/log/rank-1.txt",
    ]
    assert err.startswith("Traceback"), "nothing of torch's own reports comes before"
    assert out == "out of rank 0\n"
    assert "ValueError: boom" in (run.folder / "log/rank-1.txt").read_text()
    assert not any(is_gone_within(pid, 0) is False for pid in run.workers())


def test_killed_worker_is_named_and_not_the_peers_that_lost_it(launch):
    run = launch("killed")
    code, _, err = run.end()
    assert code == 1
    assert "titan: rank 1 failed: killed by SIGKILL" in err.splitlines()[-2]


def test_hanging_peer_of_a_failed_worker_is_ended_within_seconds(launch):
    run = launch("hang")
    run.wait_for("stepping-1")
    began = time.monotonic()
    code, _, err = run.end()
    assert code == 1
    assert time.monotonic() - began < 12, "5 s for the peer, not the 30 s of torch elastic"
    assert err.splitlines()[-2] == "titan: rank 1 failed: ValueError: boom"
    assert all(is_gone_within(pid, 1) for pid in run.workers())


@pytest.mark.parametrize(("mode", "code"), [("refused", 2), ("not-finite", 3)])
def test_what_a_restart_would_repeat_is_not_restarted(launch, mode, code):
    run = launch(mode, MAX_RESTARTS="3")
    found, _, err = run.end()
    assert found == code
    assert len(run.workers()) == 2
    assert "Traceback" not in err, "messages for the user come without one"


def test_other_failures_are_restarted_as_often_as_max_restarts_says(launch):
    run = launch("flaky", MAX_RESTARTS="1")
    code, _, err = run.end()
    assert code == 0
    assert len(run.workers()) == 4
    assert "titan: restart 1 of 1" in err


def test_what_a_worker_started_ends_with_it(launch):
    run = launch("leave-child")
    run.end()
    children = [int(file.name.rsplit("-", 1)[1]) for file in run.folder.glob("child-*")]
    assert children
    assert all(is_gone_within(pid, 2) for pid in children)
