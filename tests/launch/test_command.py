"""From a TOML file to workers: as many as the degrees ask for, with the data prepared before they start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.launch.conftest import NOT_INHERITED, ROOT

CONFIG = """
[job]
dump_folder = "out"
[model]
name = "llama3"
flavor = "debugmodel"
[training]
dataset = "text"
dataset_path = "text.txt"
seq_len = 32
global_batch_size = 4
local_batch_size = -1
[parallelism]
tensor_parallel_degree = 2
"""
CODE = """
import sys
from titan.launch import main
sys.exit(main(sys.argv[2:], worker=("-m", "tests.launch.worker", sys.argv[1], "out")))
"""


def _launch(folder: Path, mode: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    (folder / "text.txt").write_text("to be or not to be, " * 500)
    (folder / "run.toml").write_text(CONFIG)
    variables = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    variables |= {"OMP_NUM_THREADS": "1", "TITAN_DEVICE": "cpu", "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder)}
    command = [sys.executable, "-c", CODE, mode, "run.toml", *overrides]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)


def test_degrees_say_how_many_processes_and_paths_are_those_of_the_caller(tmp_path):
    done = _launch(tmp_path, "done", "--job.description=a $HOME ${local_rank}")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(file.name.split("-")[1] for file in (tmp_path / "out").glob("started-*")) == ["0", "1"]
    assert "tokeniz" in done.stdout, "the launcher prepared the data"


def test_dump_folder_that_is_a_file_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "out").write_text("")
    done = _launch(tmp_path, "done")
    assert done.returncode == 2
    assert done.stderr.startswith('titan: job.dump_folder = "out": cannot be made or written to')
