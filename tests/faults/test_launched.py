"""Whole runs under the launcher in which ranks die, fail or stand still (C78, C80): what is said, and what goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.launch.conftest import NOT_INHERITED, ROOT

TOML = """
[job]
dump_folder = "{folder}/run"
[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "{root}/tests/assets/tokenizer251"
[model.args]
dim = 64
n_layers = 4
n_heads = 4
n_kv_heads = 2
hidden_dim = 96
vocab_size = 251
[training]
dataset = "text"
dataset_path = "{root}/ARCHITECTURE.md"
cache_folder = "{folder}/cache"
seq_len = 32
global_batch_size = 8
local_batch_size = -1
steps = 6
mixed_precision_param = "float32"
[parallelism]
pipeline_parallel_degree = 2
[activation_checkpoint]
mode = "none"
[checkpoint]
enable = true
interval = 2
[metrics]
log_freq = 1
enable_tensorboard = true
[comm]
train_timeout_seconds = 6
[debug]
seed = 7
"""


def launch(folder: Path, plan: str, *overrides: str, **environment: str) -> tuple[int, str, float]:
    """Exit code, standard error and seconds of a run with the planned faults."""
    config = folder / "run.toml"
    config.write_text(TOML.format(folder=folder, root=ROOT))
    variables = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    variables |= {"OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", "tests.faults.start", plan, str(config), *overrides]
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=240, check=False)
    return done.returncode, done.stderr, time.monotonic() - began


def test_a_run_goes_on_by_itself_after_each_kind_of_death_and_writes_one_value_a_step(tmp_path: Path) -> None:
    plan = "0:1:4:kill-in-block,1:0:4:kill-in-save"
    code, err, _ = launch(tmp_path, plan, MAX_RESTARTS="2")
    assert code == 0, err
    said = [line for line in err.splitlines() if line.startswith(("titan: rank", "titan: restart"))]
    assert said == [
        "titan: rank 1 failed: killed by SIGKILL (the system does that when memory runs out)",
        "titan: restart 1 of 2",
        "titan: rank 0 failed: killed by SIGKILL (the system does that when memory runs out)",
        "titan: restart 2 of 2",
    ]
    log = (tmp_path / "run/log/rank-0.txt").read_text()
    resumed = [line.split("of step ")[1].split()[0] for line in log.splitlines() if "checkpoint: loaded" in line]
    assert resumed == ["2", "2"], "from the last complete checkpoint each time; the one being written is not"
    steps = [json.loads(line)["step"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 7))
    points = [
        event.step
        for file in sorted((tmp_path / "run/tb").iterdir())
        for event in EventAccumulator(str(file)).Reload().Tensors("loss")
    ]
    assert sorted(points) == list(range(1, 7))
    assert json.loads((tmp_path / "run/status.json").read_text())["status"] == "done"


def test_a_rank_that_stands_still_is_named_with_what_the_others_wait_in(tmp_path: Path) -> None:
    overrides = ["--parallelism.pipeline_parallel_degree=1", "--parallelism.tensor_parallel_degree=2"]
    code, err, _ = launch(tmp_path, "0:1:3:stop-in-block", *overrides)
    run = tmp_path / "run"
    assert code == 1
    last = err.splitlines()[-2]
    assert last.startswith("titan: rank 1 failed: did not arrive where the others wait (rank 0: step 3: forward and")
    assert "waits in gloo:" in last
    assert "  rank 1: no sign of life" in err
    assert "in forward_backward" in (run / "log/rank-0.stacks.txt").read_text()
    assert (run / "comm_traces/rank_0").stat().st_size > 0
    assert not (run / "log/rank-1.hang.json").exists()
