"""What the environment says about a launch, and all that is wrong with it at once."""

from __future__ import annotations

import pytest

from titan.config import ConfigError
from titan.launch.settings import Settings

pytestmark = pytest.mark.quick


def test_one_node_needs_no_variable_and_shares_nothing_with_another_run():
    one, other = Settings.from_environment({}), Settings.from_environment({})
    assert (one.processes, one.nodes, one.max_restarts) == (None, 1, 0)
    assert one.endpoint == "localhost:0"
    assert one.run_id != other.run_id


def test_values_are_taken_and_empty_ones_are_not_set():
    given = {"NPROC": "4", "NNODES": "2", "RDZV_ENDPOINT": "node0:29400", "MAX_RESTARTS": "3", "NUMA_BINDING": ""}
    settings = Settings.from_environment(given | {"SLURM_JOB_ID": "77"})
    assert (settings.processes, settings.nodes, settings.endpoint) == (4, 2, "node0:29400")
    assert (settings.max_restarts, settings.numa_binding, settings.run_id) == (3, None, "77")
    assert settings.local_address is None


def test_all_problems_are_reported_at_once():
    given = {"NPROC": "0", "NNODES": "1:4", "MAX_RESTARTS": "-1", "NUMA_BINDING": "nodes", "RDZV_TIMEOUT": "x"}
    with pytest.raises(ConfigError) as error:
        Settings.from_environment(given)
    text = str(error.value)
    assert [problem.key for problem in error.value.problems] == [
        "NNODES",
        "NUMA_BINDING",
        "NPROC",
        "MAX_RESTARTS",
        "RDZV_TIMEOUT",
    ]
    assert "NPROC = 0: must be a whole number of at least 1." in text
    assert "node, socket, exclusive, core-complex; node?" in text


@pytest.mark.parametrize("endpoint", ["", "node0", "node0:x", ":29400", "node0:99999"])
def test_several_nodes_need_an_endpoint(endpoint):
    with pytest.raises(ConfigError, match=r"RDZV_ENDPOINT.*must be host:port"):
        Settings.from_environment({"NNODES": "2", "RDZV_ENDPOINT": endpoint})


def test_numa_binding_without_accelerator_is_refused():
    settings = Settings.from_environment({"NUMA_BINDING": "node"})
    with pytest.raises(ConfigError, match="NUMA_BINDING = node"):
        settings.check_device("cpu")
    settings.check_device("cuda")
