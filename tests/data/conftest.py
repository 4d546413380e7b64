"""What the tests of data share: sections of the configuration with a cache of their own, and JSON lines to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from titan.config.schema_training import Training

MakeTraining = Callable[..., Training]
WriteRows = Callable[..., Path]


@pytest.fixture
def training(tmp_path: Path) -> MakeTraining:
    """Makes a training section whose cache is this test's own, and whose rows are short."""

    def make(**values: Any) -> Training:
        return Training(**{"cache_folder": str(tmp_path / "cache"), "seq_len": 8, **values})

    return make


@pytest.fixture
def jsonl(tmp_path: Path) -> WriteRows:
    """Writes texts as JSON lines and returns the path."""

    def write(texts: Iterable[Any], name: str = "data.jsonl") -> Path:
        path = tmp_path / "input" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        return path

    return write
