"""What cannot run is refused in seconds, in one message, before a process or a folder exists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.conftest import NOT_INHERITED, ROOT

CONFIG = '[model]\nname = "llama3"\nflavor = "debugmodel"\n[job]\ndump_folder = "{folder}"\n'


def _launch(*arguments: str, module: str = "titan.launch", **environment: str) -> tuple[int, str]:
    variables = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    command = [sys.executable, "-m", *module.split(), *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**variables, "TITAN_DEVICE": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "run.toml"
    file.write_text(CONFIG.format(folder=tmp_path / "out"))
    return file


def test_missing_file_and_bad_override_are_reported_together(tmp_path):
    code, err = _launch(str(tmp_path / "none.toml"), "--nonsense")
    assert code == 2
    assert "none.toml" in err
    assert "nonsense" in err


def test_unknown_key_is_refused_and_nothing_is_made(config, tmp_path):
    code, err = _launch(str(config), "--training.sequence_length=128")
    assert code == 2
    assert "training.sequence_length" in err
    assert not (tmp_path / "out").exists()


def test_processes_that_do_not_fit_the_degrees_are_refused_with_numbers(config, tmp_path):
    code, err = _launch(str(config), "--parallelism.tensor_parallel_degree=2", NPROC="3")
    assert code == 2
    assert "2, which does not divide 3 processes" in err
    assert not (tmp_path / "out").exists()


def test_nodes_without_meeting_point_are_refused(config):
    code, err = _launch(str(config), NNODES="2")
    assert code == 2
    assert err.startswith("titan: environment: RDZV_ENDPOINT")


def test_no_config_shows_the_usage():
    code, err = _launch()
    assert code == 2
    assert err.startswith("usage: ")


def test_half_set_rank_variables_are_refused_and_do_not_wait(config):
    code, err = _launch(str(config), module="titan train", RANK="0", WORLD_SIZE="2")
    assert code == 2
    assert "MASTER_ADDR: is not set" in err
    assert "./train.sh or torchrun" in err
