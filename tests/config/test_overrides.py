"""Overrides on the command line: value as TOML, else text; every mistake is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from titan.config import ConfigError, load

pytestmark = pytest.mark.quick


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text("[training]\nsteps = 7\n[model.args]\ndim = 64\n")
    return path


GOOD: list[tuple[list[str], str, Any]] = [
    (["--training.steps=3"], "training.steps", 3),
    (["--training.steps", "3"], "training.steps", 3),
    (["--training.steps=3", "--training.steps=4"], "training.steps", 4),
    (["--parallelism.data_parallel_shard_degree", "-1"], "parallelism.data_parallel_shard_degree", -1),
    (["--optimizer.lr=1"], "optimizer.lr", 1.0),
    (["--optimizer.lr=1e-3"], "optimizer.lr", 1e-3),
    (["--training.max_norm=inf"], "training.max_norm", float("inf")),
    (["--compile.enable"], "compile.enable", True),
    (["--compile.enable", "--training.steps=1"], "compile.enable", True),
    (["--compile.enable", "false"], "compile.enable", False),
    (["--compile.enable=false"], "compile.enable", False),
    (["--compile.enable=True"], "compile.enable", True),
    (["--compile.enable", "False"], "compile.enable", False),
    (["--compile.no_enable"], "compile.enable", False),
    (["--activation_checkpoint.no-preserve-rng-state"], "activation_checkpoint.preserve_rng_state", False),
    (["--job.description=a b = c"], "job.description", "a b = c"),
    (['--job.description="quoted"'], "job.description", "quoted"),
    (["--job.description=12"], "job.description", "12"),
    (["--job.description="], "job.description", ""),
    (["--job.description=1\nx = 2"], "job.description", "1\nx = 2"),
    (["--activation_checkpoint.selective_ac_option=2"], "activation_checkpoint.selective_ac_option", "2"),
    (["--parallelism.pipeline_parallel_schedule=1F1B"], "parallelism.pipeline_parallel_schedule", "1F1B"),
    (["--parallelism.fsdp_reshard_after_forward=2"], "parallelism.fsdp_reshard_after_forward", 2),
    (["--parallelism.fsdp_reshard_after_forward=never"], "parallelism.fsdp_reshard_after_forward", "never"),
    (
        ['--parallelism.module_fqns_per_model_part=[["a"],["b"]]'],
        "parallelism.module_fqns_per_model_part",
        [["a"], ["b"]],
    ),
    (["--training.dataloader.num_workers=2"], "training.dataloader.num_workers", 2),
    (["--model.args.n_heads=4"], "model.args", {"dim": 64, "n_heads": 4}),
    (["--model.args.rope_scaling.factor=4.0"], "model.args", {"dim": 64, "rope_scaling": {"factor": 4.0}}),
]


@pytest.mark.parametrize(("arguments", "key", "value"), GOOD)
def test_an_override_sets_its_key(empty: Path, arguments: list[str], key: str, value: Any) -> None:
    found: Any = load(empty, arguments)
    for name in key.split("."):
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


BAD = [
    (["steps=3"], "overrides look like --section.key=value"),
    (["--steps=3"], "overrides look like --section.key=value"),
    (["--training..steps=3"], "overrides look like --section.key=value"),
    (["-training.steps=3"], "overrides look like --section.key=value"),
    (["--training.steps"], "needs a value: --training.steps=VALUE"),
    (["--training.steps=many"], 'training.steps = "many": must be an integer >= 1.'),
    (["--training.step=3"], "Did you mean training.steps?"),
    (["--training.local-batch-size=3"], "Did you mean training.local_batch_size?"),
    (["--compile.enable=yes"], "Write true, without quotes"),
    (["--compile.no_enable=true"], "Write compile.enable = false."),
    (["--training.no_steps"], "Did you mean training.steps?"),
    (["--training.steps.more=3"], "must be an integer >= 1"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD)
def test_a_bad_override_is_refused_by_name(empty: Path, arguments: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(empty, arguments)
    (message,) = str(caught.value).splitlines()
    assert said in message
    assert message.startswith("command line: ")
