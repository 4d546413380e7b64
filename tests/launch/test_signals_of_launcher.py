"""Signals to the launcher: workers agree, stop and leave status.json, and the exit code says "start me again"."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.conftest import is_gone_within
from titan.launch import early
from titan.runtime import errors, signals


@pytest.mark.parametrize(
    ("number", "mode", "then"),
    [
        (signal.SIGTERM, "steps", "goes on from the last checkpoint"),
        (signal.SIGUSR1, "steps-unsaved", "begins anew, as checkpoint.enable is false"),
    ],
)
def test_stop_signal_ends_in_75_with_status_and_nothing_running(launch, number, mode, then):
    run = launch(mode)
    run.wait_for("stepping-1")
    run.process.send_signal(number)
    code, _, err = run.end()
    assert code == 75
    status = json.loads((run.folder / "status.json").read_text())
    assert status["status"] == "stopped"
    assert f"the same command {then}" in err
    assert "Traceback" not in err
    assert all(is_gone_within(pid, 1) for pid in run.workers())


def test_second_ctrl_c_ends_workers_that_do_not_come_to_their_next_step(launch):
    run = launch("hang-both")
    run.wait_for("hanging-0")
    run.process.send_signal(signal.SIGINT)
    run.wait_for("noted-0")
    run.process.send_signal(signal.SIGINT)
    code, _, err = run.end(30)
    assert code == 130
    assert "Traceback" not in err
    assert all(is_gone_within(pid, 1) for pid in run.workers())


def test_signal_before_workers_exist_ends_in_75(launch):
    run = launch("steps", NNODES="2", RDZV_ENDPOINT="localhost:29873")  # the other node never comes
    line = run.process.stderr.readline()
    assert "waiting for 2 nodes" in line
    run.process.send_signal(signal.SIGTERM)
    code, _, err = run.end(30)
    assert (code, err) == (75, "")
    assert not run.workers()


def test_workers_of_a_killed_launcher_stop_in_order(launch):
    run = launch("steps")
    run.wait_for("stepping-1")
    run.process.kill()
    assert all(is_gone_within(pid, 15) for pid in run.workers())
    assert json.loads((run.folder / "status.json").read_text())["reason"] == "launcher died"


def test_a_stop_in_the_first_moments_is_a_stop_too(tmp_path):
    """The signal comes while the launcher is importing what it needs; nothing is made."""
    code = (
        "import os, signal, sys, titan.launch\n"
        "assert 'titan.config' not in sys.modules\n"
        "sys.meta_path.insert(0, type('Signal', (), {'find_spec': staticmethod(\n"
        "    lambda name, *_: os.kill(os.getpid(), signal.SIGTERM) if name == 'titan.launch.command' else None)})())\n"
        "titan.launch.main(['missing.toml'])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (75, "")
    assert not list(tmp_path.iterdir())


def test_the_first_moments_know_the_signals_and_the_code_of_the_runtime():
    assert (early.STOP_SIGNALS, early.STOPPED) == (signals.STOP_SIGNALS, errors.STOPPED)


LOST = """
import os, signal, sys, time
import titan.data

def lost(*_):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    except BaseException:
        print("lost", flush=True)
        if {as_another}:
            raise ImportError("half of a module") from None

titan.data.prepare = lost
from titan.launch import main
sys.exit(main(sys.argv[1:], worker=("-c", "print('a worker')")))
"""


@pytest.mark.parametrize("as_another", [False, True])
def test_a_stop_whose_exception_an_import_loses_or_turns_into_another_is_a_stop_too(as_another, tmp_path):
    config = Path(__file__).parents[2] / "configs" / "llama3" / "debug.toml"
    words = [str(config), f"--job.dump_folder={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-c", LOST.format(as_another=as_another), *words], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (75, "lost\n", "")
