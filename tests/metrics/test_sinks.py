"""metrics.jsonl and TensorBoard: every digit, one value a step also after crashes and resumes, one writer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from titan.config.schema import Metrics as Section
from titan.metrics import Metrics

pytestmark = pytest.mark.quick
BOTH = Section(enable_tensorboard=True)
LOSS = 1 / 3


def log_steps(
    folder: Path, steps: range, *, resumed_step: int = 0, offset: float = 0.0, section: Section = BOTH
) -> None:
    metrics = Metrics(section, folder, rank=0, resumed_step=resumed_step)
    for step in steps:
        metrics.log(step, {"loss": step + LOSS + offset, "tokens": step * 2**33})
    metrics.close()


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def tensorboard(folder: Path, name: str = "loss") -> list[tuple[int, float]]:
    reader = EventAccumulator(str(folder / "tb"), size_guidance={"tensors": 0}).Reload()
    return [(event.step, event.tensor_proto.double_val[0]) for event in reader.Tensors(name)]


def test_numbers_keep_every_digit(tmp_path):
    log_steps(tmp_path, range(1, 4))
    assert lines(tmp_path) == [{"step": n, "loss": n + LOSS, "tokens": n * 2**33} for n in (1, 2, 3)]
    assert tensorboard(tmp_path) == [(n, n + LOSS) for n in (1, 2, 3)]
    assert tensorboard(tmp_path, "tokens") == [(n, float(n * 2**33)) for n in (1, 2, 3)]


def test_a_resume_leaves_one_value_a_step(tmp_path):
    log_steps(tmp_path, range(1, 9))
    log_steps(tmp_path, range(6, 12), resumed_step=5, offset=100.0)
    expected = [(n, n + LOSS) for n in range(1, 6)] + [(n, n + LOSS + 100.0) for n in range(6, 12)]
    assert [(line["step"], line["loss"]) for line in lines(tmp_path)] == expected
    assert tensorboard(tmp_path) == expected


def test_a_second_resume_from_further_back_drops_whole_files(tmp_path):
    log_steps(tmp_path, range(1, 9))
    log_steps(tmp_path, range(6, 12), resumed_step=5)
    log_steps(tmp_path, range(4, 6), resumed_step=3, offset=7.0)
    expected = [(n, n + LOSS) for n in (1, 2, 3)] + [(n, n + LOSS + 7.0) for n in (4, 5)]
    assert [(line["step"], line["loss"]) for line in lines(tmp_path)] == expected
    assert tensorboard(tmp_path) == expected
    assert len(list((tmp_path / "tb").iterdir())) == 2


def test_what_a_crash_cut_off_is_dropped(tmp_path):
    log_steps(tmp_path, range(1, 4))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "lo')
    (events,) = (tmp_path / "tb").iterdir()
    events.write_bytes(events.read_bytes()[:-5])
    log_steps(tmp_path, range(4, 6), resumed_step=3)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4, 5]
    assert [step for step, _value in tensorboard(tmp_path)] == [1, 2, 3, 4, 5]


def test_a_resume_with_nothing_to_drop_touches_no_earlier_file(tmp_path):
    log_steps(tmp_path, range(1, 4))
    before = {path: path.stat().st_mtime_ns for path in [tmp_path / "metrics.jsonl", *(tmp_path / "tb").iterdir()]}
    Metrics(BOTH, tmp_path, rank=0, resumed_step=3).close()
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_fresh_run_starts_fresh_curves(tmp_path):
    log_steps(tmp_path, range(1, 4))
    log_steps(tmp_path, range(1, 3), offset=5.0)
    assert [line["loss"] for line in lines(tmp_path)] == [1 + LOSS + 5.0, 2 + LOSS + 5.0]
    assert tensorboard(tmp_path) == [(1, 1 + LOSS + 5.0), (2, 2 + LOSS + 5.0)]


def test_a_reader_may_follow(tmp_path):
    metrics = Metrics(BOTH, tmp_path, rank=0, resumed_step=0)
    metrics.log(1, {"loss": LOSS})
    assert lines(tmp_path) == [{"step": 1, "loss": LOSS}]
    assert tensorboard(tmp_path) == [(1, LOSS)]
    metrics.close()
    metrics.close()


def test_the_json_stays_json_when_a_number_is_not_finite(tmp_path):
    metrics = Metrics(Section(), tmp_path, rank=0, resumed_step=0)
    metrics.log(1, {"loss": math.nan, "grad_norm": math.inf, "lr": 0.1})
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text == '{"step": 1, "loss": null, "grad_norm": null, "lr": 0.1}\n'


@pytest.mark.parametrize("rank", [0, 1])
def test_only_what_is_asked_for_is_written_and_only_by_one_rank(tmp_path, rank):
    for section, names in (
        (Section(enable_jsonl=False), set()),
        (Section(), {"metrics.jsonl"}),
        (Section(enable_jsonl=False, enable_tensorboard=True, save_tb_folder="curves"), {"curves"}),
    ):
        folder = tmp_path / "-".join(sorted(names) or ["none"])
        folder.mkdir()
        metrics = Metrics(section, folder, rank=rank, resumed_step=0)
        metrics.log(1, {"loss": 1.0})
        metrics.close()
        assert {path.name for path in folder.iterdir()} == (names if rank == 0 else set())


def test_every_rank_writes_its_own_files_where_that_is_asked_for(tmp_path):
    section = Section(enable_tensorboard=True, save_for_all_ranks=True)
    for rank in range(3):
        metrics = Metrics(section, tmp_path, rank=rank, resumed_step=0)
        metrics.log(1, {"memory_gib": float(rank)})
        metrics.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "metrics.jsonl",
        "metrics.rank-1.jsonl",
        "metrics.rank-2.jsonl",
        "tb",
    ]
    assert json.loads((tmp_path / "metrics.rank-2.jsonl").read_text()) == {"step": 1, "memory_gib": 2.0}
    assert {path.name for path in (tmp_path / "tb").iterdir() if path.is_dir()} == {"rank-1", "rank-2"}
    # A resume of rank 0 leaves the others' points alone.
    Metrics(section, tmp_path, rank=0, resumed_step=1).close()
    assert len(list((tmp_path / "tb" / "rank-1").iterdir())) == 1
