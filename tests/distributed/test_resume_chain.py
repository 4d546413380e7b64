"""Twelve steps in four attempts, each at other degrees, are twelve straight steps of one process.

Losses and norms to 1e-5, and the rows in the same order, seen where they are used: on every rank of every attempt.
The data is real and small, 21 rows and a half-filled one, so that the run goes through four epochs, each in an order of
its own. At one layout throughout, the numbers are the same bits. What a user changes between attempts follows one rule.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed import tiny
from tests.distributed.ranks import RankError, run_ranks
from tests.distributed.test_parity import TOLERANCE, layout, relative
from titan.config import Batch
from titan.optim import LRSchedule, factor

STEPS, LEG = 12, 3
ROWS, WORDS = 22, 21 * tiny.SEQ + tiny.SEQ // 2  # with BOS and EOS: 22 rows, the last one half full
TIED = "args.tie_embeddings=true"
CHAINS = {
    "every degree": (
        "dp_shard=2",
        "tp=2,pp=2,schedule=Interleaved1F1B",
        "cp=2,rotate=alltoall,training.local_batch_size=2",
        "dp_replicate=2,dp_shard=2",
    ),
    "tied, through schedules and one process": (
        f"pp=2,schedule=ZBVZeroBubble,microbatch=2,{TIED}",
        TIED,
        f"dp_shard=4,{TIED}",
        f"tp=2,training.local_batch_size=2,{TIED}",
    ),
}
Sections = dict[str, dict[str, Any]]


class Recorded:
    """The loader, remembering the rows of each step as it hands them out."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.steps: list[list[str]] = []

    def __next__(self) -> Any:
        data = next(self._loader)
        rows = zip(data.inputs.flatten(0, 1), data.labels.flatten(0, 1), strict=True)
        self.steps.append([hashlib.md5(torch.cat(row).numpy().tobytes()).hexdigest() for row in rows])
        return data

    def close(self) -> None:
        self._loader.close()


def settings(sections: Sections, folder: Path, run: str) -> Any:
    """The tiny run on a text of its own, which all attempts share."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_text(" ".join(f"w{i * i * i % 248}" for i in range(WORDS)), encoding="utf-8")
    data = {"dataset": "text", "dataset_path": str(text), "cache_folder": str(folder / "cache"), "steps": STEPS}
    training = {**data, **sections.get("training", {})}
    checkpoint = {"enable": True, "interval": 100}
    return tiny.config({**sections, "training": training, "checkpoint": checkpoint}, str(folder / run))


def open_trainer(sections: Sections, folder: Path, run: str) -> Any:
    from titan.data import open_rows

    config = settings(sections, folder, run)
    trainer = tiny.make_trainer(config, open_rows(config.training, config.model, config.debug.seed))
    trainer.loader = Recorded(trainer.loader)
    return trainer


def results(trainer: Any, steps: int) -> dict[str, Any]:
    first = trainer.progress.step
    records = tiny.train_steps(trainer, steps)
    trainer.save()
    trainer.loader.close()
    trainer.checkpoints.close()
    return {
        "first": first,
        "records": [{key: record[key] for key in ("loss", "grad_norm", "lr")} for record in records],
        "rows": trainer.loader.steps,
        "batch_rank": trainer.mesh.batch_rank if trainer.mesh else 0,
        "last": tiny.local_pieces(trainer, grads=False),
    }


def attempt(sections: Sections, folder: Path, run: str, steps: int) -> dict[str, Any]:
    """What a rank does: goes on from the run's checkpoint, takes steps, saves."""
    return results(open_trainer(sections, folder, run), steps)


def on_ranks(text: str, folder: Path, run: str, steps: int) -> tuple[list[dict[str, Any]], list[list[str]], Any]:
    """(records, rows of each step in the order of the batch ranks, results of the ranks)."""
    size, sections = layout(text)
    ranks = run_ranks(attempt, size, sections, folder, run, steps)
    by_batch: dict[int, list[list[str]]] = {}
    for rank in ranks:
        held = by_batch.setdefault(rank["batch_rank"], rank["rows"])
        assert held == rank["rows"], "ranks that share rows read the same ones"
        assert rank["records"] == ranks[0]["records"]
    rows = [[row for batch in sorted(by_batch) for row in by_batch[batch][step]] for step in range(steps)]
    return ranks[0]["records"], rows, ranks


@cache
def straight(text: str, folder: Path) -> tuple[list[dict[str, Any]], list[list[str]], dict[str, torch.Tensor]]:
    records, rows, ranks = on_ranks(text, folder, f"straight {text}", STEPS)
    return records, rows, tiny.whole([rank["last"] for rank in ranks])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chains")


@pytest.mark.parametrize("name", CHAINS)
def test_four_attempts_at_four_layouts_are_one_straight_run(name: str, folder: Path) -> None:
    wanted, wanted_rows, weights = straight(TIED if "tied" in name else "", folder)
    read = [row for step in wanted_rows for row in step]
    first, second = read[:ROWS], read[ROWS : 2 * ROWS]
    assert len(set(first)) == ROWS
    assert sorted(first) == sorted(second), "an epoch has every row once"
    assert first != second, "in an order of its own"
    found: list[dict[str, Any]] = []
    rows: list[list[str]] = []
    for number, text in enumerate(CHAINS[name]):
        records, read, ranks = on_ranks(text, folder, name, LEG)
        assert {rank["first"] for rank in ranks} == {number * LEG}
        found += records
        rows += read
    assert rows == wanted_rows, "nothing lost, nothing repeated, nothing moved"
    for step, (one, want) in enumerate(zip(found, wanted, strict=True), 1):
        assert one["lr"] == want["lr"]
        for key in ("loss", "grad_norm"):
            assert one[key] == pytest.approx(want[key], rel=TOLERANCE), f"step {step}: {key}"
    last = tiny.whole([rank["last"] for rank in ranks])
    assert max(relative(last[fqn], weights[fqn]) for fqn in weights) < TOLERANCE


@pytest.mark.parametrize("text", ["", "dp_shard=2", "pp=2,schedule=ZBVZeroBubble"], ids=lambda text: text or "one")
def test_at_one_layout_the_attempts_have_the_same_bits(text: str, folder: Path) -> None:
    wanted, wanted_rows, weights = straight(text, folder)
    found: list[dict[str, Any]] = []
    rows: list[list[str]] = []
    for _ in range(STEPS // LEG):
        records, read, ranks = on_ranks(text, folder, f"same {text}", LEG)
        found += records
        rows += read
    assert rows == wanted_rows
    assert found == wanted
    last = tiny.whole([rank["last"] for rank in ranks])
    assert all(torch.equal(last[fqn], weights[fqn]) for fqn in weights)


NEW: Sections = {
    "optimizer": {"lr": 5e-4, "weight_decay": 0.5},
    "lr_scheduler": {"warmup_steps": 1, "total_steps": 8},
    "training": {"global_batch_size": 4},
}


def changed_live(folder: Path) -> dict[str, Any]:
    """One process that is handed new hyper-parameters after three steps, without a checkpoint between."""
    trainer = open_trainer({}, folder, "live")
    before = tiny.train_steps(trainer, LEG)
    new = settings(NEW, folder, "live")
    for group in trainer.optimizer.param_groups:
        group["weight_decay"] = new.optimizer.weight_decay if group["weight_decay"] else 0.0
    trainer.schedule = LRSchedule(trainer.optimizer, new.lr_scheduler, peak=new.optimizer.lr, steps=STEPS)
    trainer.batch = Batch(4, 4, 1, 4)
    trainer.loader.close()
    trainer.loader = Recorded(trainer._open_loader())
    after = results(trainer, LEG)
    return {**after, "before": [record["loss"] for record in before]}


def test_changed_hyper_parameters_are_in_force_from_the_first_resumed_step(folder: Path) -> None:
    (live,) = run_ranks(changed_live, 1, folder)
    first, _rows, _ranks = on_ranks("dp_shard=2", folder, "changed", LEG)
    assert [record["loss"] for record in first] == pytest.approx(live["before"], rel=TOLERANCE)
    size, sections = layout("tp=2")
    ranks = run_ranks(attempt, size, {**sections, **NEW}, folder, "changed", LEG)
    assert ranks[0]["rows"] == live["rows"], "the rows go on where they were, four at a time"
    new = settings(NEW, folder, "changed")
    assert [record["lr"] for record in ranks[0]["records"]] == [
        new.optimizer.lr * factor(step, new.lr_scheduler, STEPS) for step in range(LEG + 1, 2 * LEG + 1)
    ]
    for found, want in zip(ranks[0]["records"], live["records"], strict=True):
        for key in ("loss", "grad_norm", "lr"):
            assert found[key] == pytest.approx(want[key], rel=TOLERANCE), key
    last, wanted = tiny.whole([rank["last"] for rank in ranks]), tiny.whole([live["last"]])
    assert max(relative(last[fqn], wanted[fqn]) for fqn in wanted) < TOLERANCE


def test_a_batch_that_only_the_degrees_changed_is_refused_on_every_rank(folder: Path) -> None:
    own = {"training": {"global_batch_size": -1, "local_batch_size": 4}}
    _size, sections = layout("dp_shard=2")
    run_ranks(attempt, 2, {**sections, **own}, folder, "free batch", 1)
    _size, wider = layout("dp_shard=4")
    with pytest.raises(RankError, match=r"training\.global_batch_size = -1: .* 16 rows a step .* trained with 8"):
        run_ranks(attempt, 4, {**wider, **own}, folder, "free batch", 1)
    keeps = {"training": {"global_batch_size": 8, "local_batch_size": 4}}
    ranks = run_ranks(attempt, 4, {**wider, **keeps}, folder, "free batch", 1)
    assert {rank["first"] for rank in ranks} == {1}
