"""How a run ends before its last step: all ranks at the same one, with a checkpoint, and a status that says why."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.distributed import tiny
from tests.distributed.ranks import RankError, run_ranks
from tests.distributed.test_parity import layout
from titan.config import ConfigError
from titan.faults.stragglers import blocks_of
from titan.faults.time_budget import STARTED
from titan.runtime import StopRequest


def _run(sections: dict[str, dict[str, Any]], folder: str, asked: tuple[int, int] | None, began: float) -> Any:
    """The loop; `asked` is (rank, step): that rank gets a signal while it takes the step, 0: before the first."""
    os.environ[STARTED] = repr(time.time() - began)
    options = {"checkpoint": {"enable": True, "interval": 100}, "metrics": {"log_freq": 1}, **sections}
    trainer = tiny.make_trainer(tiny.config(options, folder))
    stop = StopRequest()
    forward = trainer.forward_backward

    def ask(*args: Any) -> Any:
        if asked == (trainer.world.rank, trainer.progress.step + 1):
            stop.request("SIGTERM")
            stop.request("SIGTERM")
        return forward(*args)

    trainer.forward_backward = ask
    if asked == (trainer.world.rank, 0):
        stop.request("SIGUSR1")
    code = trainer.train(stop)
    del os.environ[STARTED]
    return code, vars(trainer.progress)


def _status(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "status.json").read_text())  # type: ignore[no-any-return]


def _saved(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoint").glob("step-*"))


@pytest.mark.parametrize("text", ["dp_shard=2", "pp=2"])
def test_a_signal_to_one_rank_stops_all_at_one_step_with_a_checkpoint(text: str, tmp_path: Path) -> None:
    size, sections = layout(text)
    sections["training"] = {"steps": 9}
    results = run_ranks(_run, size, sections, str(tmp_path), (1, 2), 0.0)
    assert results == [(75, {"step": 2, "rows": 16, "tokens": 512})] * size
    assert _saved(tmp_path) == ["step-2"]
    assert _status(tmp_path) == {"status": "stopped", "step": 2, "reason": "asked to stop", "checkpoints": True}


def test_a_signal_before_the_first_step_leaves_no_checkpoint_and_loses_nothing(tmp_path: Path) -> None:
    size, sections = layout("dp_shard=2")
    results = run_ranks(_run, size, sections, str(tmp_path), (0, 0), 0.0)
    assert results == [(75, {"step": 0, "rows": 0, "tokens": 0})] * size
    assert _saved(tmp_path) == []
    assert _status(tmp_path) == {"status": "stopped", "step": 0, "reason": "SIGUSR1", "checkpoints": True}


def test_the_time_limit_stops_all_ranks_and_says_so(tmp_path: Path) -> None:
    size, sections = layout("dp_shard=2")
    sections |= {"job": {"time_limit": "1h"}, "training": {"steps": 500}}
    # An hour less a save that has not been measured yet (60 s) and the moment that some steps take.
    results = run_ranks(_run, size, sections, str(tmp_path), None, 3600 - 60 - 0.7)
    progress = results[0][1]
    assert results == [(75, progress)] * size
    assert 0 < progress["step"] < 500
    assert _saved(tmp_path) == [f"step-{progress['step']}"]
    assert _status(tmp_path)["reason"] == "job.time_limit = 3600 s"


def test_the_end_of_the_data_is_the_end_of_the_run_on_all_ranks(tmp_path: Path) -> None:
    size, sections = layout("dp_shard=2")
    sections["training"] = {"steps": 500, "epochs": 1, "global_batch_size": 20}  # 64 rows an epoch
    results = run_ranks(_run, size, sections, str(tmp_path), None, 0.0)
    assert results == [(0, {"step": 3, "rows": 60, "tokens": 60 * tiny.SEQ})] * size
    assert _saved(tmp_path) == ["step-3"]
    assert _status(tmp_path) == {
        "status": "done",
        "step": 3,
        "reason": "end of the data after 60 rows",
        "checkpoints": True,
    }
    assert (tmp_path / "checkpoint/model-only/step-3").is_dir(), "as at any end"
    # Again: done already, at another layout too, and nothing is written anew.
    written = (tmp_path / "checkpoint/step-3/manifest.json").stat().st_mtime_ns
    assert run_ranks(_run, 1, {"training": sections["training"]}, str(tmp_path), None, 0.0)[0][0] == 0
    assert (tmp_path / "checkpoint/step-3/manifest.json").stat().st_mtime_ns == written


def test_data_that_does_not_fill_one_step_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training.epochs = 1: gives 64 rows, fewer than the 80 of one step"):
        tiny.make_trainer(tiny.config({"training": {"epochs": 1, "global_batch_size": 80}}))


def _fail_in_one_stage(sections: dict[str, dict[str, Any]], folder: str) -> None:
    trainer = tiny.make_trainer(tiny.config(sections, folder))

    def fail(*_: Any) -> None:
        raise ValueError("a fault in one stage")

    if trainer.world.rank == 1:
        blocks_of(trainer.model.parts, "layers")[0].register_forward_pre_hook(fail)
    trainer.train(StopRequest())


def test_an_exception_in_one_stage_ends_all_ranks_at_once_and_is_the_first_error(tmp_path: Path) -> None:
    size, sections = layout("pp=2,dp_shard=2")
    began = time.monotonic()
    with pytest.raises(RankError, match="ValueError: a fault in one stage") as caught:
        run_ranks(_fail_in_one_stage, size, sections, str(tmp_path), fresh=True)
    assert caught.value.rank == 1
    assert time.monotonic() - began < 30
