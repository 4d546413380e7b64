"""The header of a run and the rates it is measured against, from the resolved configuration alone."""

from __future__ import annotations

import pytest

from tests.distributed.tiny import config
from titan.config import resolve
from titan.metrics import describe, run_throughput

pytestmark = pytest.mark.quick


def test_the_header_says_what_runs_where():
    layout = {"parallelism": {"pipeline_parallel_degree": 2, "data_parallel_shard_degree": 2}}
    resolved = resolve(config(layout, folder="runs/a"), 4, "cpu")
    lines = describe(resolved, rows_per_epoch=12345, world_size=4, device="a CPU (cpu)")
    facts = {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in lines}
    assert facts["model"].endswith(f"{resolved.spec.parameter_count(resolved.model_args):,} parameters")
    assert facts["mesh"] == f"{resolved.degrees} (4 processes)"
    assert facts["batch"] == ("8 rows of 32 tokens a step = 2 batch ranks x 1 accumulation x 4 rows in 4 microbatches")
    assert facts["data"].endswith("12,345 rows an epoch")
    assert (facts["device"], facts["run folder"]) == ("a CPU (cpu)", "runs/a")


def test_one_process_has_no_mesh():
    lines = describe(resolve(config({}), 1, "cpu"), rows_per_epoch=1, world_size=1, device="cpu")
    assert "mesh        one process" in lines
    assert not any("microbatches" in line for line in lines)


@pytest.mark.parametrize(("device", "known"), [("NVIDIA H100 PCIe", True), ("AMD EPYC 9654", False)])
def test_utilisation_is_against_the_peak_of_all_devices_where_it_is_known(device, known):
    layout = {"parallelism": {"data_parallel_shard_degree": 2}}
    resolved = resolve(config(layout), 2, "cpu")
    rates = run_throughput(resolved, world_size=2, device_name=device)
    rates.step(tokens=100, waited=0.0)
    values = rates.read(steps_left=0)
    assert values["tokens_per_second"] == 2 * values["tokens_per_second_per_device"]
    flops = resolved.spec.flops_per_token(resolved.model_args, 32)
    assert values.get("mfu") == (pytest.approx(values["tokens_per_second"] * flops / (2 * 51.2e12)) if known else None)
