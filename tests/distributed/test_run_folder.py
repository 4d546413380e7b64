"""Whole runs of one process from files: what lies in the folder, that its config.toml runs again to the same losses
(C10), a seed checkpoint as the start of a run, one step with a longer warm-up (C11), a dry run of a larger world.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.distributed import tiny
from tests.distributed.ranks import run_ranks

TEXT = """
[model.args]
dim = 64
n_layers = 2
n_heads = 4
n_kv_heads = 2
hidden_dim = 96
vocab_size = 251

[model]
hf_assets_path = "{tokenizer}"

[training]
dataset = "text"
dataset_path = "{folder}/corpus.txt"
cache_folder = "{folder}/cache"
seq_len = 32
global_batch_size = 8
local_batch_size = -1
steps = 3
mixed_precision_param = "float32"
tokenizer_workers = 1

[lr_scheduler]
warmup_steps = 2

[activation_checkpoint]
mode = "none"

[metrics]
log_freq = 1
"""


def run_file(path: str, arguments: list[str]) -> tuple[int, list[dict[str, Any]]]:
    """One process of a run, as `titan train` makes it; its exit code and metrics."""
    from titan import trainer
    from titan.config import load
    from titan.data import prepare
    from titan.runtime import log

    config = load(path, arguments)
    folder = Path(config.job.dump_folder)
    log.start(folder, 0)
    prepare(config.training, config.model)
    code = trainer.train(config)
    log.stop()
    lines = folder / "metrics.jsonl"
    return code, [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    text = "the quick brown fox jumps over the lazy dog and then some more of them came along"
    lines = (f"{text[number % 5 :]} {text[: number % 7]} {number}" for number in range(200))
    (tmp_path / "corpus.txt").write_text("\n".join(lines))
    (tmp_path / "run.toml").write_text(TEXT.format(folder=tmp_path, tokenizer=tiny.TOKENIZER))
    return tmp_path / "run.toml"


def run(path: Path, folder: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    (found,) = run_ranks(run_file, 1, str(path), [f"--job.dump_folder={folder}", *arguments])
    return found


def losses(lines: list[dict[str, Any]]) -> list[tuple[float, float, float]]:
    return [(line["loss"], line["grad_norm"], line["lr"]) for line in lines]


def test_the_configuration_of_a_run_folder_runs_again_to_the_same_losses(path: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    code, lines = run(path, first, "--debug.seed=5", "--optimizer.lr=1e-3", "--job.save_config_file=as/run.json")
    assert (code, len(lines)) == (0, 3)
    text = (first / "config.toml").read_text()
    assert "seed = 5  # command line" in text
    assert f"seq_len = 32  # {path}:" in text
    assert "max_norm = 1.0  # default" in text
    again_code, again = run(first / "config.toml", tmp_path / "second")
    assert again_code == 0
    assert losses(again) == losses(lines)
    one, two = (tomllib.loads((tmp_path / name / "config.toml").read_text()) for name in ("first", "second"))
    assert one.pop("job") | {"dump_folder": ""} == two.pop("job") | {"dump_folder": ""}
    assert one == two
    as_json = json.loads((first / "as" / "run.json").read_text())
    assert as_json["optimizer"]["lr"] == 1e-3
    assert as_json["training"]["steps"] == 3


def test_a_seed_checkpoint_is_step_0_of_the_run_that_follows(path: Path, tmp_path: Path) -> None:
    saved = ["--checkpoint.enable", "--debug.seed=5"]
    folder = tmp_path / "seeded"
    code, lines = run(path, folder, *saved, "--checkpoint.create_seed_checkpoint")
    assert (code, lines) == (0, [])
    assert {entry.name for entry in (folder / "checkpoint").iterdir()} == {"step-0"}
    state = json.loads((folder / "checkpoint" / "step-0" / "state.json").read_text())
    assert len(state["numerics"]) == 64
    code, lines = run(path, folder, *saved)
    assert code == 0
    assert losses(lines) == losses(run(path, tmp_path / "straight", *saved)[1])
    code, lines = run(path, folder, *saved, "--checkpoint.create_seed_checkpoint")
    assert code == 0, "a run that has begun is left alone"
    assert (folder / "checkpoint" / "step-3").exists()


@pytest.mark.parametrize("warmup", [1, 5])
def test_a_run_of_one_step_logs_and_saves_it_at_a_finite_rate(path: Path, tmp_path: Path, warmup: int) -> None:
    folder = tmp_path / "one"
    arguments = ["--training.steps=1", f"--lr_scheduler.warmup_steps={warmup}", "--checkpoint.enable"]
    code, (line,) = run(path, folder, *arguments)
    assert code == 0
    assert line["lr"] == pytest.approx(8e-4)
    assert (folder / "checkpoint" / "step-1" / "manifest.json").exists()


def run_two(folder: str) -> int:
    """What a rank of two does, with a file of metrics each."""
    from titan.runtime import StopRequest

    Path(folder).mkdir(exist_ok=True)
    metrics = {"log_freq": 1, "save_for_all_ranks": True}
    layout = {"parallelism": {"data_parallel_shard_degree": 2}, "metrics": metrics}
    code: int = tiny.make_trainer(tiny.config(layout, folder)).train(StopRequest())
    return code


def test_every_rank_writes_its_own_metrics_where_that_is_asked_for(tmp_path: Path) -> None:
    assert run_ranks(run_two, 2, str(tmp_path)) == [0, 0]
    one, other = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("metrics.jsonl", "metrics.rank-1.jsonl")
    )
    assert losses(one) == losses(other), "the job's"
    own = [[(line["memory_gib"], line["step_seconds"]) for line in lines] for lines in (one, other)]
    assert own[0] != own[1], "the rank's own"


def dry(path: str, arguments: list[str]) -> tuple[int, str]:
    from titan.config import load, world_size_wanted
    from titan.dry_run import dry_run
    from titan.runtime import log

    config = load(path, arguments)
    log.start(config.job.dump_folder, 0)
    code = dry_run(config, world_size_wanted(config, "cpu"))
    log.stop()
    return code, log.path(config.job.dump_folder, 0).read_text()


def test_a_dry_run_is_rank_0_of_a_world_that_is_not_there(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dry"
    degrees = {"tensor_parallel": 2, "context_parallel": 2, "data_parallel_shard": 2, "data_parallel_replicate": 2}
    layout = [f"--parallelism.{name}_degree={size}" for name, size in degrees.items()]
    arguments = [f"--job.dump_folder={folder}", "--comm.mode=fake_backend", "--training.steps=1", *layout]
    ((code, said),) = run_ranks(dry, 1, str(path), [*arguments, "--checkpoint.enable"])
    assert code == 0
    assert "dp_replicate 2 x dp_shard 2 x cp 2 x tp 2 (16 processes)" in said
    # A quarter over fsdp and half over tp of most weights.
    whole = 2 * 251 * 64 + 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96 + 2 * 64) + 64
    (held,) = (int(line.split()[-2].replace(",", "")) for line in said.splitlines() if "dry run: rank 0" in line)
    assert whole / 8 <= held < whole / 8 * 1.2
    assert not (folder / "checkpoint").exists(), "nothing is saved"
    assert not (folder / "metrics.jsonl").exists(), "and no loss shown that would mean nothing"
