"""The whole way from files to the steps of ranks: every document once an epoch, at any number of files and ranks (C15,
C16), and the counts of the first run's data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.data.conftest import MakeTraining
from titan.config.schema_model import Model
from titan.data import Rows, cache, open_rows
from titan.data.loader import StepLoader
from titan.data.tokenizer import load

pytestmark = pytest.mark.quick


def epoch(rows: Rows, *, batch_ranks: int, global_rows: int, steps: int) -> torch.Tensor:
    """Inputs that `batch_ranks` ranks read in `steps` steps, (steps x global_rows, seq_len) in the order of the run."""
    loaders = [
        StepLoader(
            rows,
            global_rows=global_rows,
            accumulation=1,
            batch_ranks=batch_ranks,
            batch_rank=rank,
            position=0,
            prefetch=0,
        )
        for rank in range(batch_ranks)
    ]
    return torch.cat([next(loader).inputs[0] for _ in range(steps) for loader in loaders])


@pytest.mark.parametrize("lines", [[40], [17, 20, 3], [5, 1, 30, 4], [0, 40]], ids=str)
@pytest.mark.parametrize("batch_ranks", [1, 2, 4])
def test_every_document_is_read_once_an_epoch_at_any_number_of_files_and_ranks(
    tmp_path: Path, training: MakeTraining, lines: list[int], batch_ranks: int
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    number = 0
    for index, count in enumerate(lines):
        texts = [f"document {number + line} ends" for line in range(count)]
        (folder / f"{index}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        number += count
    section = training(dataset="json", dataset_path=str(folder), seq_len=16)
    rows = open_rows(section, Model(), seed=1)
    global_rows = 4
    steps = -(-rows.rows_per_epoch // global_rows)
    read = epoch(rows, batch_ranks=batch_ranks, global_rows=global_rows, steps=steps)
    one = epoch(rows, batch_ranks=1, global_rows=global_rows, steps=steps)
    assert torch.equal(read, one)
    # The first epoch is every row of the data once, and the rows spell every document once.
    tokens = cache.open_corpus(cache.prepare(section, Model())).tokens.tolist()
    filled = tokens + tokens[-1:] * 16  # the last row is filled up
    expected = [filled[start : start + 16] for start in range(0, len(tokens) - 1, 16)]
    assert sorted(read[: rows.rows_per_epoch].tolist()) == sorted(expected)
    text = load(Model()).decode(tokens)
    assert all(text.count(f"document {index} ends") == 1 for index in range(40))


def test_ranks_of_a_step_read_different_rows(tmp_path: Path, training: MakeTraining) -> None:
    path = tmp_path / "a.txt"
    path.write_text(" ".join(map(str, range(2000))))
    rows = open_rows(training(dataset="text", dataset_path=str(path)), Model(), seed=0)
    step = epoch(rows, batch_ranks=4, global_rows=8, steps=1)
    assert len({tuple(row) for row in step.tolist()}) == 8


def test_masked_boundaries_are_one_label_each_over_an_epoch(tmp_path: Path, training: MakeTraining) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {index} " * (index % 7 + 1)}) + "\n" for index in range(30)))
    valid = []
    for mask in (False, True):
        section = training(dataset="json", dataset_path=str(path), mask_document_boundaries=mask)
        rows = open_rows(section, Model(), seed=0)
        valid.append(int((rows.fetch(0, rows.rows_per_epoch)[1] != -100).sum()))
    corpus = cache.open_corpus(cache.prepare(section, Model()))
    assert valid == [len(corpus.tokens) - 1, len(corpus.tokens) - 1 - 29]
