"""Profiler traces: which steps, where, and what is in them."""

from __future__ import annotations

import json

import pytest
import torch

from titan.config.schema import Profiling
from titan.runtime import World
from titan.runtime.profiler import profile

WORLD = World(rank=3, local_rank=3, world_size=4, device=torch.device("cpu"))


def run(section, folder, steps, **options):
    with profile(section, folder, WORLD, **options) as profiler:
        for step in range(1, steps + 1):
            with torch.profiler.record_function(f"training step {step}"):
                torch.ones(8, 8) @ torch.ones(8, 8)
            profiler.step()


def recorded(folder) -> dict[str, set[str]]:
    found = {}
    for path in sorted(folder.glob("**/*.json")):
        names = {event.get("name", "") for event in json.loads(path.read_text())["traceEvents"]}
        assert "aten::mm" in names
        found[str(path.relative_to(folder))] = {name for name in names if name.startswith("training step")}
    return found


def test_each_cycle_records_its_last_steps_in_a_folder_of_its_own(tmp_path):
    section = Profiling(enable_profiling=True, profile_freq=4, profiler_warmup=1, profiler_active=2)
    run(section, tmp_path, 9)
    assert recorded(tmp_path / "profile_traces") == {
        "iteration_4/rank3_trace.json": {"training step 3", "training step 4"},
        "iteration_8/rank3_trace.json": {"training step 7", "training step 8"},
    }


def test_a_resumed_run_names_traces_by_its_own_steps(tmp_path):
    section = Profiling(enable_profiling=True, profile_freq=2, profiler_warmup=1, save_traces_folder="traces")
    run(section, tmp_path, 2, resumed_step=50)
    assert set(recorded(tmp_path / "traces")) == {"iteration_52/rank3_trace.json"}


@pytest.mark.quick
def test_off_it_writes_nothing(tmp_path):
    run(Profiling(), tmp_path, 5)
    assert list(tmp_path.iterdir()) == []
