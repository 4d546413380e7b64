"""Who a process is among those of the run; a half-set environment is refused and never waits for a peer (C12)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from titan.config import ConfigError
from titan.config.schema_run import Comm
from titan.runtime.distributed import rank_from_environment, setup, shutdown

pytestmark = pytest.mark.quick
FULL = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


def test_no_variables_are_one_process():
    assert rank_from_environment({}) == (0, 0, 1)


def test_variables_of_a_launcher_are_taken():
    assert rank_from_environment(FULL) == (1, 0, 4)


def test_without_local_rank_the_rank_counts():
    assert rank_from_environment({**FULL, "LOCAL_RANK": ""}) == (1, 1, 4)


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_missing_variable_is_refused_with_what_to_run(missing):
    given = {name: value for name, value in FULL.items() if name != missing}
    with pytest.raises(ConfigError, match=rf"{missing}: is not set.*train.sh or torchrun"):
        rank_from_environment(given)


@pytest.mark.parametrize(("name", "value"), [("RANK", "x"), ("WORLD_SIZE", "0"), ("RANK", "4"), ("WORLD_SIZE", "-1")])
def test_numbers_out_of_range_are_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        rank_from_environment({**FULL, name: value})


def test_one_process_has_no_group(monkeypatch):
    import torch.distributed as dist

    for name in FULL:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TITAN_DEVICE", "cpu")
    world = setup(Comm())
    assert (world.rank, world.world_size, world.device.type) == (0, 1, "cpu")
    assert not dist.is_initialized()
    shutdown(world)


def test_torchcomms_without_a_backend_is_refused_and_not_replaced_in_silence(monkeypatch):
    for name in FULL:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCH_DISTRIBUTED_USE_TORCHCOMMS", "1")
    monkeypatch.setitem(sys.modules, "torchcomms", None)  # as where it is not installed, or is PyPI's empty package
    with pytest.raises(ConfigError, match="TORCH_DISTRIBUTED_USE_TORCHCOMMS = 1: the installed torchcomms has no"):
        setup(Comm())


def test_importing_the_runtime_loads_no_torch():
    code = "import sys, titan.runtime, titan.cli, titan.launch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0
