"""`titan plan` as a whole: what it reads, says, writes and returns."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.plan.tiny_plan import CONFIGS, DEBUG, target
from titan.commands import check, plan
from titan.config import ConfigError
from titan.plan.build import make
from titan.plan.request import read

PIPELINE = ["--parallelism.pipeline_parallel_degree=2", "--parallelism.pipeline_parallel_schedule=Interleaved1F1B"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = plan.main(words)
    out, err = capsys.readouterr()
    return code, out, err


def lines() -> list[Any]:
    """(file, GPUs, overrides) of each "N GPUs: ..." of the shipped configurations; by default the first of each."""
    found = [pytest.param("debug", 1, [], id="debug 1")]
    for path in sorted(CONFIGS.glob("*.toml")):
        said = re.findall(r"^# +(\d+) GPUs: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        for place, (world, words) in enumerate(said):
            marks = [pytest.mark.full] if place and path.stem != "405b" else []
            overrides = [] if words.startswith("as it stands") else words.split()
            found.append(pytest.param(path.stem, int(world), overrides, id=f"{path.stem} {world}", marks=marks))
    return found


@pytest.mark.parametrize(("name", "world", "overrides"), lines())
def test_a_shipped_configuration_fits_the_gpus_that_it_says(name: str, world: int, overrides: list[str]) -> None:
    found = make(read(str(CONFIGS / f"{name}.toml"), overrides, world, target()), target())
    assert found.fits, found.heaviest
    assert found.time.seconds > 0
    assert len(found.memory) == found.resolved.degrees.pp


def test_the_terminal_report(capsys: pytest.CaptureFixture[str]) -> None:
    degrees = ["--parallelism.tensor_parallel_degree=2", "--parallelism.data_parallel_shard_degree=2", *PIPELINE]
    code, out, err = run(capsys, DEBUG, *degrees)
    assert (code, err) == (0, "")
    for part in (
        "pp 2 x dp_shard 2 x tp 2 (8 x NVIDIA H100 SXM 80 GB, one node)",
        "fits: ",
        "tokens/s",
        "Who talks to whom",
        "0, 2",  # the fsdp group of rank 0
        "Memory of each pipeline rank",
        "optimizer state",
        "reduce_scatter",
        "pipeline bubble",
        "all ranks wait",
    ):
        assert part in out


def test_json_has_every_part_and_its_sums_hold(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, DEBUG, "--json", "--device", "a100", *PIPELINE)
    found: dict[str, Any] = json.loads(out)
    assert code == 0
    assert found["degrees"] == {"pp": 2, "dp_replicate": 1, "dp_shard": 4, "cp": 1, "tp": 1}
    assert found["world_size"] == 8  # a node of GPUs, where the degrees leave it open
    assert found["device"]["name"] == "a100"
    assert [memory["stages"] for memory in found["memory"]] == [[0, 2], [1, 3]]
    for memory in found["memory"]:
        assert sum(memory["items"].values()) == memory["peak"]
    assert sum(found["time"]["terms"].values()) == pytest.approx(found["time"]["step_seconds"])
    assert {line["dimension"] for line in found["traffic"]} == {"pp", "fsdp", "world"}
    assert 0 < found["time"]["bubble"] < 1


class _Page(HTMLParser):
    """Tags that are open, and attributes that would load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "data")]
        if tag not in ("meta", "rect", "line", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "line"):
            assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, trace_path = tmp_path / "plan.html", tmp_path / "plan.json"
    words = ["--html", str(path), "--trace", str(trace_path), "--parallelism.tensor_parallel_degree=2"]
    code, _out, _ = run(capsys, DEBUG, *PIPELINE, *words, "--parallelism.data_parallel_shard_degree=2")
    text = path.read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    assert (code, page.open, page.loads) == (0, [], [])
    assert "script" not in page.seen
    assert all(word not in text for word in ("http", "url(", "@import"))
    assert "prefers-color-scheme: dark" in text
    for title in ("Memory of each pipeline rank", "A step", "Timeline of the schedule", "Mesh", "Communication"):
        assert f"<h2>{title}" in text
    assert "limit 77.6 GiB" in text
    assert "rank 2: in rank 0&#x27;s fsdp group" in text
    # 32 / 2 batch ranks = 16 microbatches through 4 stages, forward and backward, each a bar with its title
    assert len(re.findall(r"<title>(?:forward|backward) of microbatch \d+, stage \d+", text)) == 16 * 4 * 2
    events = json.loads(trace_path.read_text())["traceEvents"]
    bars = [event for event in events if event["ph"] == "X"]
    assert len(bars) == 16 * 4 * 2
    assert {event["tid"] for event in bars} == {0, 1}
    assert all(event["dur"] > 0 for event in bars)


def test_what_does_not_fit_ends_with_1_and_one_change_that_would(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model.flavor=1B", "--training.seq_len=2048", "--world-size", "1", "--memory", "40"]
    code, out, _ = run(capsys, DEBUG, *words)
    assert code == 1
    assert "does not fit: " in out
    change = re.search(r"change +(.*): [\d.]+ GiB", out)
    assert change is not None
    again, out, _ = run(capsys, DEBUG, *words, *change[1].split())
    assert again == 0, out


@pytest.mark.quick
def test_a_refused_configuration_ends_with_2_and_the_words_of_check(capsys: pytest.CaptureFixture[str]) -> None:
    words = (DEBUG, "--training.seq_len=129", "--parallelism.tensor_parallel_degree=3", "--world-size", "3")
    assert check.main(words) == 2
    wanted = capsys.readouterr().err
    assert run(capsys, *words) == (2, "", wanted)


@pytest.mark.quick
def test_what_train_refuses_for_lack_of_support_becomes_a_note() -> None:
    words = ["--model.converters=['quantize.linear.float8']", "--parallelism.enable_async_tensor_parallel=true"]
    words += ["--quantize.linear.float8.filter_fqns=['output']"]
    found = read(DEBUG, words, 1, target())
    assert (found.extras.float8, found.extras.float8_head, found.extras.async_tp) == (True, False, True)
    assert len(found.notes) == 2
    with pytest.raises(ConfigError, match="tensor_parallel_degree"):  # other problems stay problems
        read(DEBUG, [*words, "--parallelism.tensor_parallel_degree=3"], 3, target())
    with pytest.raises(ConfigError, match="quantized training"):
        read(DEBUG, ["--model.converters=['quantize.linear.mx']"], 1, target())


@pytest.mark.quick
def test_a_tokenizer_that_is_not_here_is_a_note() -> None:
    found = read(str(CONFIGS / "8b.toml"), [], 8, target())
    assert found.resolved.model_args.vocab_size == 128_256
    assert any("Llama-3.1-8B is not here" in note for note in found.notes)
