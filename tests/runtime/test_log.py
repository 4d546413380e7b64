"""What reaches the console and what only the log file."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings

import pytest

from titan.config import ConfigError
from titan.runtime import log

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def _stop():
    yield
    log.stop()


def test_rank_0_shows_our_messages_and_keeps_everything_in_its_file(tmp_path, capsys):
    log.start(tmp_path, 0)
    logging.getLogger("titan").info("step 1 [bold] loss 5.5")
    logging.getLogger("titan.data").warning("slow")
    logging.getLogger("some.library").warning("noise")
    warnings.warn("deprecated", stacklevel=1)
    log.stop()
    assert capsys.readouterr() == ("step 1 [bold] loss 5.5\nwarning: slow\n", "")
    kept = log.path(tmp_path, 0).read_text()
    assert all(text in kept for text in ("step 1", "slow", "noise", "deprecated"))


def test_the_launcher_shows_what_preparing_the_data_says(tmp_path, capsys):
    log.start_launcher(tmp_path)
    logging.getLogger("titan.data").info("python_stdlib: 385 documents")
    logging.getLogger("titan.data").warning("skipped 2")
    assert capsys.readouterr() == ("python_stdlib: 385 documents\nwarning: skipped 2\n", "")


def test_other_ranks_are_silent(tmp_path, capsys):
    log.start(tmp_path, 3)
    logging.getLogger("titan").warning("mine")
    assert capsys.readouterr() == ("", "")
    assert "mine" in (tmp_path / "log" / "rank-3.txt").read_text()


def test_starting_again_replaces_the_handlers(tmp_path, capsys):
    log.start(tmp_path / "a", 0)
    log.start(tmp_path / "b", 0)
    logging.getLogger("titan").info("once")
    assert capsys.readouterr().out == "once\n"
    assert log.path(tmp_path / "a", 0).read_text() == ""


def test_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"job.dump_folder = .*cannot be made or written to"):
        log.start(tmp_path / "file" / "run", 0)
    with pytest.raises(ConfigError, match=r"job.dump_folder"):
        log.start(tmp_path / "file", 0)


@pytest.mark.parametrize(("rank", "out"), [(0, "printed\n"), (1, "")])
def test_own_streams_catch_what_bypasses_python(tmp_path, rank, out):
    code = f"""
import os
from titan.runtime import log
log.own_streams({str(tmp_path)!r}, {rank})
os.system("echo from a child >&2")
print("printed", flush=True)
print("for the user", file=log.console_error(), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (out, "for the user\n")
    assert "from a child" in log.path(tmp_path, rank).read_text()
