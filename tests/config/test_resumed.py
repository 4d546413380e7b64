"""What a resume says of changes, and the batch that it refuses to change by itself."""

from __future__ import annotations

from typing import Any

import pytest

from titan.config import Config, ConfigError, dump
from titan.config.resumed import resumed

pytestmark = pytest.mark.quick


def config(**training: Any) -> Config:
    return Config.model_validate({"training": {"steps": 20, **training}, "debug": {"seed": 3}})


def state(saved: Config, rows: int = 16, layout: str = "dp_shard 2") -> dict[str, Any]:
    return {"step": 6, "config": dump(saved), "global_rows": rows, "layout": layout}


def test_nothing_is_said_of_an_unchanged_run() -> None:
    same = config(global_batch_size=16)
    assert resumed(state(same), same, global_rows=16, layout="dp_shard 2") == []


def test_each_change_is_named_with_the_step_that_it_begins_at() -> None:
    new = Config.model_validate(
        {
            "training": {"steps": 30, "global_batch_size": 32},
            "optimizer": {"lr": 5e-4, "weight_decay": 0.2},
            "lr_scheduler": {"warmup_steps": 5},
            "debug": {"seed": 4},
        }
    )
    said = resumed(state(config(global_batch_size=16)), new, global_rows=32, layout="tp 2")
    for text in (
        "resume: optimizer.lr 0.0008 -> 0.0005, from step 7 on",
        "resume: optimizer.weight_decay 0.1 -> 0.2, from step 7 on",
        "resume: lr_scheduler.warmup_steps 200 -> 5, from step 7 on",
        "resume: lr_scheduler.total_steps 20 -> 30, from step 7 on",
        "resume: training.global_batch_size 16 -> 32, from step 7 on",
        "resume: 16 -> 32 rows a step, from step 7 on",
        "resume: saved at dp_shard 2, goes on at tp 2",
    ):
        assert text in said
    assert not any("seed" in line for line in said), "the run keeps its seed, which the trainer says"


def test_a_batch_that_follows_the_degrees_is_refused_with_both_ways_out() -> None:
    same = config(local_batch_size=8)
    with pytest.raises(ConfigError) as caught:
        resumed(state(same), same, global_rows=32, layout="dp_shard 4")
    text = str(caught.value)
    assert text.startswith("training.global_batch_size = -1: local_batch_size 8 x the data-parallel ranks is 32 rows")
    assert "the checkpoint was trained with 16 (dp_shard 2): set 16 to go on with the same run, 32 to change" in text


def test_a_batch_that_the_user_changed_is_taken() -> None:
    said = resumed(state(config(local_batch_size=8)), config(local_batch_size=16), global_rows=32, layout="dp_shard 2")
    assert "resume: training.local_batch_size 8 -> 16, from step 7 on" in said
    wished = config(local_batch_size=8, global_batch_size=32)
    assert resumed(state(config(local_batch_size=8)), wished, global_rows=32, layout="dp_shard 4")


def test_an_older_state_without_these_entries_is_read() -> None:
    assert resumed({"step": 1}, config(), global_rows=8, layout="tp 2") == []
