"""Layouts by short names, and the default list."""

from __future__ import annotations

from typing import get_args

import pytest

from titan.config import ConfigError
from titan.config.schema_parallelism import Schedule
from titan.parity.layouts import DEFAULT, parse

pytestmark = pytest.mark.quick


def test_short_names_become_overrides_over_degrees_of_one() -> None:
    (layout,) = parse(["pp=2, schedule=DualPipeV, training.max_norm=0.1"])
    assert layout.world_size == 2
    assert layout.overrides(8) == [
        "--parallelism.pipeline_parallel_degree=2",
        "--parallelism.data_parallel_replicate_degree=1",
        "--parallelism.data_parallel_shard_degree=1",
        "--parallelism.context_parallel_degree=1",
        "--parallelism.tensor_parallel_degree=1",
        "--parallelism.pipeline_parallel_schedule=DualPipeV",
        "--training.max_norm=0.1",
    ]


def test_options_and_semicolons_make_one_list_with_each_layout_once() -> None:
    assert [layout.text for layout in parse(["tp=2; dp_shard=2", ";tp=2;one process"])] == [
        "tp=2",
        "dp_shard=2",
        "one process",
    ]


@pytest.mark.parametrize("texts", [[""], [";"], [" ; ", ";"]])
def test_a_list_without_a_layout_is_refused(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"--layouts: names no layout: write some, as in \"tp=2; pp=2\""):
        parse(texts)


def test_accumulation_is_a_share_of_the_rows_of_a_batch_rank() -> None:
    (layout,) = parse(["dp_shard=2,accumulation=4"])
    assert "--training.local_batch_size=4" in layout.overrides(32)


def test_a_compile_backend_switches_compile_on() -> None:
    (layout,) = parse(["compile=aot_eager"])
    assert layout.overrides(8)[-2:] == ["--compile.enable=true", "--compile.backend=aot_eager"]


def test_every_mistake_is_told_at_once_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(["tpp=2,dp_shard=0;pp;schedul=GPipe"])
    texts = [str(problem) for problem in caught.value.problems]
    assert len(texts) == 4
    assert "did you mean tp" in texts[0]
    assert "dp_shard=0: must be a whole number of at least 1" in texts[1]
    assert "did you mean schedule" in texts[3]


def test_the_default_list_has_every_schedule_method_and_degree_on_at_most_eight_processes() -> None:
    layouts = parse([";".join(DEFAULT)])
    assert len(layouts) == len(DEFAULT)
    assert max(layout.world_size for layout in layouts) == 8
    sizes = [layout.world_size for layout in layouts]
    assert sizes == sorted(sizes)
    every = {item for text in DEFAULT for item in text.split(",")}
    assert {f"schedule={name}" for name in get_args(Schedule)} <= every
    assert {f"rotate={name}" for name in ("allgather", "alltoall", "ulysses")} <= every
    three = [layout for layout in layouts if sum(value == "2" for _key, value in layout.settings) >= 3]
    assert len(three) >= 4, "mixes of three parallelisms"
