"""What counts for the numbers of a run, and what a resume says about a change of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from titan.config import changed, dump, load, numerics, numerics_hash

pytestmark = pytest.mark.quick
DEBUG = Path(__file__).parents[2] / "configs" / "llama3" / "debug.toml"

SAME = [
    "--parallelism.tensor_parallel_degree=2",
    "--parallelism.pipeline_parallel_schedule=GPipe",
    "--job.dump_folder=elsewhere",
    "--metrics.log_freq=7",
    "--checkpoint.interval=3",
    "--training.local_batch_size=4",
    "--training.cache_folder=elsewhere",
    "--optimizer.implementation=foreach",
    "--activation_checkpoint.mode=full",
    "--compile.enable",
    "--lr_scheduler.total_steps=60",  # what the run's length says already
]
OTHER = [
    ("--optimizer.lr=5e-4", "optimizer.lr 0.001 -> 0.0005"),
    ("--model.args.n_layers=3", "model.args.n_layers none -> 3"),
    ("--model.flavor=1B", 'model.flavor "debugmodel" -> "1B"'),
    ("--training.seq_len=64", "training.seq_len 128 -> 64"),
    ("--training.global_batch_size=16", "training.global_batch_size 32 -> 16"),
    ("--training.mixed_precision_param=bfloat16", 'training.mixed_precision_param "float32" -> "bfloat16"'),
    ("--training.max_norm=inf", "training.max_norm 1.0 -> inf"),
    ("--lr_scheduler.total_steps=90", "lr_scheduler.total_steps 60 -> 90"),
    ("--debug.seed=43", "debug.seed 42 -> 43"),
]


@pytest.mark.parametrize("override", SAME)
def test_layout_folders_and_logging_do_not_count(override: str) -> None:
    base, other = load(DEBUG), load(DEBUG, [override])
    assert changed(dump(base), other) == []
    assert numerics_hash(base) == numerics_hash(other)


@pytest.mark.parametrize(("override", "said"), OTHER)
def test_what_changes_the_numbers_is_named_with_both_values(override: str, said: str) -> None:
    base, other = load(DEBUG), load(DEBUG, [override])
    assert changed(dump(base), other) == [said]
    assert numerics_hash(base) != numerics_hash(other)


def test_the_length_of_the_schedule_follows_the_steps_and_both_are_named() -> None:
    found = changed(dump(load(DEBUG)), load(DEBUG, ["--training.steps=80"]))
    assert found == ["lr_scheduler.total_steps 60 -> 80", "training.steps 60 -> 80"]


def test_the_local_batch_counts_where_it_makes_the_batch() -> None:
    follows = ["--training.global_batch_size=-1", "--training.local_batch_size=4"]
    found = numerics(load(DEBUG, follows))
    assert found["training.local_batch_size"] == 4
    assert "training.local_batch_size" not in numerics(load(DEBUG))


def test_an_older_text_without_a_key_of_today_counts_as_its_default() -> None:
    text = "\n".join(line for line in dump(load(DEBUG)).splitlines() if not line.startswith("mask_document"))
    assert changed(text, load(DEBUG)) == []


def test_text_that_is_no_toml_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="line 1"):
        changed("= nothing", load(DEBUG))
