"""Several launchers: two nodes of one run on the loopback interface, and two runs at once that must not meet."""

from __future__ import annotations

import socket


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_two_launchers_make_one_run(launch):
    endpoint = f"localhost:{_free_port()}"
    nodes = [launch("done", name, NNODES="2", NPROC="1", RDZV_ENDPOINT=endpoint) for name in ("a", "b")]
    assert [node.end()[0] for node in nodes] == [0, 0]
    ranks = sorted(file.name.split("-")[1] for node in nodes for file in node.folder.glob("started-*"))
    assert ranks == ["0", "1"]


def test_first_error_of_one_node_is_told_by_both(launch):
    endpoint = f"localhost:{_free_port()}"
    nodes = [launch("raise", name, NNODES="2", NPROC="1", RDZV_ENDPOINT=endpoint) for name in ("a", "b")]
    for node in nodes:
        code, _, err = node.end()
        assert code == 1
        assert err.splitlines()[-2] == "titan: rank 1 failed: ValueError: boom"


def test_node_that_never_comes_is_said_and_ends_the_wait(launch):
    run = launch("done", NNODES="2", RDZV_ENDPOINT=f"localhost:{_free_port()}", RDZV_TIMEOUT="2")
    code, _, err = run.end(30)
    assert code == 1
    assert "titan: not all of 2 nodes came within 2 s" in err
    assert "Traceback" not in err


def test_two_runs_at_once_do_not_meet_and_an_old_status_ends_none(launch, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "status.json").write_text('{"status": "stopped"}')
    runs = [launch("done", name) for name in ("a", "b")]
    assert [run.end()[::2] for run in runs] == [(0, "")] * 2, "done, and not a word on standard error"
    for run in runs:
        assert sorted(file.name.split("-")[1] for file in run.folder.glob("started-*")) == ["0", "1"]
