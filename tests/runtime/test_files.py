"""status.json and environment.json in the run folder; seed, device and memory of a process."""

from __future__ import annotations

import json

import pytest
import torch

from titan.config import ConfigError
from titan.config.schema_run import Debug
from titan.runtime import (
    PeakMemory,
    World,
    agree_on_seed,
    device_count,
    device_name,
    device_type,
    local_device,
    read_status,
    set_determinism,
    write_environment,
    write_status,
)
from titan.runtime.status import clear_status

pytestmark = pytest.mark.quick
ONE = World(0, 0, 1, torch.device("cpu"))


def test_status_is_read_as_written_and_leaves_no_other_file(tmp_path):
    folder = tmp_path / "run"
    assert read_status(folder) is None
    write_status(folder, "stopped", step=7, reason="SIGTERM")
    assert read_status(folder) == {"status": "stopped", "step": 7, "reason": "SIGTERM"}
    assert [file.name for file in folder.iterdir()] == ["status.json"]
    clear_status(folder)
    clear_status(folder)
    assert read_status(folder) is None


def test_environment_holds_versions_and_no_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    write_environment(tmp_path, ONE)
    text = (tmp_path / "environment.json").read_text()
    found = json.loads(text)
    assert found["packages"]["torch"] == torch.__version__
    assert found["world_size"] == 1
    assert found["variables"]["NCCL_DEBUG"] == "INFO"
    assert "hf_secret" not in text


def test_seed_of_the_config_is_taken_and_without_one_two_runs_differ():
    assert agree_on_seed(42, ONE) == 42
    drawn = [agree_on_seed(None, ONE) for _ in range(2)]
    assert drawn[0] != drawn[1]
    assert all(0 <= seed < 2**63 for seed in drawn)


def test_determinism_follows_the_config():
    set_determinism(Debug())
    assert not torch.are_deterministic_algorithms_enabled()
    try:
        set_determinism(Debug(deterministic=True, deterministic_warn_only=True))
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_cpu_can_be_forced_and_other_devices_are_refused_by_name(monkeypatch):
    monkeypatch.setenv("TITAN_DEVICE", "cpu")
    assert (device_type(), device_count("cpu"), local_device(5).type) == ("cpu", 1, "cpu")
    assert device_name(torch.device("cpu"))
    monkeypatch.setenv("TITAN_DEVICE", "tpu")
    with pytest.raises(ConfigError, match="TITAN_DEVICE = tpu"):
        device_type()


def test_peak_of_resident_memory_is_in_gib():
    peak = PeakMemory(torch.device("cpu"))
    before = peak.gib()
    block = torch.ones(64 * 2**20)  # 0.25 GiB of float32
    assert peak.gib() >= before
    assert 0.25 < peak.gib() < 64, "neither KiB nor bytes"
    del block
