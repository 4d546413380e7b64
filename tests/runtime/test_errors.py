"""How a process ends: exit codes, what the user reads, torch elastic's error file."""

from __future__ import annotations

import json
import time

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from titan.config import ConfigError, Problem
from titan.runtime.errors import is_about_a_peer, main_with_errors
from titan.runtime.signals import LAUNCHER_PID

pytestmark = pytest.mark.quick


class NotFinite(RuntimeError):
    exit_code = 3


class LikeCheckpointException(BaseException):
    """`except Exception` misses DCP's."""


CASES = [
    (ConfigError([Problem("a.b", "must be 2.", "1")]), 2, "titan: a.b = 1: must be 2.\n"),
    (NotFinite("loss is nan at step 3"), 3, "titan: loss is nan at step 3\n"),
    (KeyboardInterrupt(), 130, "titan: interrupted\n"),
]


def _raise(error: BaseException) -> int:
    raise error


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in (LAUNCHER_PID, "TORCHELASTIC_ERROR_FILE", "RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("error", "code", "text"), CASES)
def test_messages_for_the_user_are_shown_alone(error, code, text, capsys):
    assert main_with_errors(lambda: _raise(error)) == code
    assert capsys.readouterr() == ("", text)


@pytest.mark.parametrize("error", [ValueError("boom"), LikeCheckpointException("boom")])
def test_other_errors_end_with_type_and_message_after_the_traceback(error, capsys):
    assert main_with_errors(lambda: _raise(error)) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert shown.endswith(f"titan: {type(error).__name__}: boom\n")


def test_an_error_that_the_pipeline_wraps_comes_first_with_its_stage(capsys):
    def fail():
        try:
            raise ValueError("boom")
        except ValueError as error:
            raise RuntimeError("\n            [Stage 1] failed to run forward:\n   args: ('Tensor(...)',)") from error

    assert main_with_errors(fail) == 1
    assert capsys.readouterr().err.endswith("titan: ValueError: boom ([Stage 1] failed to run forward)\n")


@pytest.mark.parametrize(
    "text",
    [
        "[../gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 4000ms for send operation to complete",
        "Application timeout caused pair closure",
    ],
)
def test_a_timeout_is_about_a_peer(text):
    assert is_about_a_peer(RuntimeError(text))


def test_exit_code_of_a_run_that_went_well_is_its_own():
    assert main_with_errors(lambda: 0) == 0
    assert main_with_errors(lambda: 75) == 75


def test_torch_elastic_reads_the_error_file_and_finds_the_exact_time(tmp_path, monkeypatch, capsys):
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    before = time.time()
    main_with_errors(lambda: _raise(ValueError("boom")))
    found = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(file))
    assert found.message["message"] == "ValueError: boom"
    assert "_raise" in found.message["extraInfo"]["py_callstack"]
    assert before <= found.message["extraInfo"]["time"] <= time.time()
    assert found.message["extraInfo"]["about_a_peer"] is False


def test_first_error_of_a_process_stays_in_its_file(tmp_path, monkeypatch, capsys):
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    for text in ("first", "second"):
        main_with_errors(lambda text=text: _raise(ValueError(text)))
    assert json.loads(file.read_text())["message"]["message"] == "ValueError: first"


def test_under_the_launcher_a_worker_leaves_the_telling_to_it(monkeypatch, capsys):
    monkeypatch.setenv(LAUNCHER_PID, "1")
    assert main_with_errors(lambda: _raise(ValueError("boom"))) == 1
    assert capsys.readouterr() == ("", "")


def test_lost_connections_are_about_a_peer_also_as_a_cause():
    gloo = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:55215")
    wrapped = RuntimeError("stage 1 failed")
    wrapped.__cause__ = gloo
    assert is_about_a_peer(gloo)
    assert is_about_a_peer(wrapped)
    assert not is_about_a_peer(ValueError("boom"))
    assert not is_about_a_peer(ConnectionResetError("Connection reset by peer")), "a download, not a rank"
