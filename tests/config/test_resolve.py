"""From a configuration and a world size to a run, or to every reason against it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from titan.config import Config, ConfigError, load, resolve, world_size_wanted
from titan.config.problems import Problem
from titan.config.schema import Model
from titan.data.tokenizer import vocab_size
from titan.models.llama3.args import LlamaArgs

pytestmark = pytest.mark.quick
CONFIGS = Path(__file__).parents[2] / "configs"
PP, TP, CP = "pipeline_parallel_degree", "tensor_parallel_degree", "context_parallel_degree"
SHARD, REPLICATE = "data_parallel_shard_degree", "data_parallel_replicate_degree"
SMALL = {"dim": 64, "n_layers": 4, "n_heads": 4, "n_kv_heads": 2}


def config(parallelism: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Config:
    """A small run of 4 layers, 4 heads and 2 KV heads; `args` overrides the model's arguments."""
    args = {**SMALL, **sections.pop("args", {})}
    training = {
        "seq_len": 32,
        "steps": 10,
        "global_batch_size": 8,
        "local_batch_size": -1,
        **sections.pop("training", {}),
    }
    values = {
        "model": {"args": args, **sections.pop("model", {})},
        "training": training,
        "lr_scheduler": {"warmup_steps": 2, **sections.pop("lr_scheduler", {})},
        "activation_checkpoint": {"mode": "none"},
        "parallelism": parallelism or {},
    }
    return Config.model_validate(values | sections)


def refused(run: Config, world_size: int = 1) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        resolve(run, world_size, "cpu")
    return caught.value.problems


def test_one_process_resolves_without_a_word() -> None:
    found = resolve(config(), 1, "cpu")
    assert found.warnings == ()
    assert found.degrees.world_size == 1
    assert (found.batch.global_rows, found.batch.rows, found.batch.accumulation) == (8, 8, 1)
    assert isinstance(found.model_args, LlamaArgs)
    assert (found.model_args.dim, found.model_args.vocab_size) == (64, vocab_size(Model()))


# (parallelism, world, degrees in the order pp, dp_replicate, dp_shard, cp, tp)
DEGREES: list[tuple[dict[str, Any], int, tuple[int, ...]]] = [
    ({}, 4, (1, 1, 4, 1, 1)),
    ({TP: 2}, 2, (1, 1, 1, 1, 2)),
    ({TP: 2, CP: 2}, 8, (1, 1, 2, 2, 2)),
    ({TP: 4}, 4, (1, 1, 1, 1, 4)),
    ({REPLICATE: 2, SHARD: 2}, 4, (1, 2, 2, 1, 1)),
    ({REPLICATE: 2, SHARD: -1, PP: 2}, 8, (2, 2, 2, 1, 1)),
]


@pytest.mark.parametrize(("parallelism", "world", "wanted"), DEGREES)
def test_the_shard_degree_takes_the_ranks_that_are_left(
    parallelism: dict[str, Any], world: int, wanted: tuple[int, ...]
) -> None:
    found = resolve(config(parallelism), world, "cpu").degrees
    assert (found.pp, found.dp_replicate, found.dp_shard, found.cp, found.tp) == wanted
    assert found.world_size == world


@pytest.mark.parametrize(
    ("parallelism", "world", "said"),
    [
        ({PP: 2, TP: 3}, 4, ["pipeline_parallel_degree 2", "tensor_parallel_degree 3", "= 6", "4 processes"]),
        ({TP: 2}, 3, ["tensor_parallel_degree 2", "= 2", "3 processes", "a multiple of 2"]),
        ({TP: 2}, 1, ["tensor_parallel_degree 2", "= 2", "1 process:"]),
        ({SHARD: 2}, 4, ["data_parallel_shard_degree 2", "= 2", "4 processes", "NPROC=2"]),
        ({SHARD: 4, REPLICATE: 2}, 4, ["= 8", "4 processes"]),
    ],
)
def test_degrees_that_do_not_make_the_world_are_refused_with_all_numbers(
    parallelism: dict[str, Any], world: int, said: list[str]
) -> None:
    first = str(refused(config(parallelism), world)[0])
    assert all(part in first for part in said), first


def test_world_size_wanted_counts_the_wildcard_as_one_on_the_cpu_and_fills_accelerators() -> None:
    assert world_size_wanted(config({TP: 2}), "cpu") == 2
    assert world_size_wanted(config({TP: 2, SHARD: 3}), "cuda", 8) == 6
    assert world_size_wanted(config({TP: 2}), "cuda", 7) == 6
    assert world_size_wanted(config({TP: 2}), "cuda", 1) == 2


# (training, parallelism, world, (rows, accumulation, microbatch size, microbatches))
BATCHES: list[tuple[dict[str, Any], dict[str, Any], int, tuple[int, int, int, int]]] = [
    ({}, {}, 1, (8, 1, 8, 1)),
    ({"local_batch_size": 4}, {}, 1, (4, 2, 4, 1)),
    ({"local_batch_size": 3}, {}, 1, (2, 4, 2, 1)),
    ({"local_batch_size": 100}, {}, 2, (4, 1, 4, 1)),
    ({"global_batch_size": 10, "local_batch_size": 4}, {}, 1, (2, 5, 2, 1)),
    ({"global_batch_size": -1, "local_batch_size": 3}, {}, 2, (3, 1, 3, 1)),
    ({}, {PP: 2}, 2, (8, 1, 1, 8)),
    ({}, {PP: 2, "pipeline_parallel_microbatch_size": 2}, 2, (8, 1, 2, 4)),
    ({"local_batch_size": 5}, {PP: 2, "pipeline_parallel_microbatch_size": 2}, 2, (4, 2, 2, 2)),
]


@pytest.mark.parametrize(("training", "parallelism", "world", "wanted"), BATCHES)
def test_the_global_batch_is_spread_by_the_largest_divisor_within_the_cap(
    training: dict[str, Any], parallelism: dict[str, Any], world: int, wanted: tuple[int, int, int, int]
) -> None:
    run = config(parallelism, training=training)
    found = resolve(run, world, "cpu")
    batch = found.batch
    assert (batch.rows, batch.accumulation, batch.microbatch_size, batch.microbatches) == wanted
    assert batch.global_rows == batch.rows * batch.accumulation * found.degrees.batch


# (sections, world, key of the problem, what it says)
RULES: list[tuple[dict[str, Any], int, str, list[str]]] = [
    # C9: the user's own keys and all the numbers
    (
        {"training": {"global_batch_size": 10}},
        4,
        "training.global_batch_size",
        ["= 10", "4 data-parallel ranks", "8 and 12"],
    ),
    ({"training": {"global_batch_size": -1}}, 1, "training.global_batch_size", ["local_batch_size = -1 as well"]),
    (
        {
            "training": {"global_batch_size": -1, "local_batch_size": 3},
            "parallelism": {PP: 2, "pipeline_parallel_microbatch_size": 2},
        },
        2,
        "training.local_batch_size",
        ["= 3", "pipeline_parallel_microbatch_size = 2", "2 and 4"],
    ),
    (
        {"training": {"local_batch_size": 2}, "parallelism": {PP: 2, "pipeline_parallel_microbatch_size": 4}},
        2,
        "training.global_batch_size",
        ["8 rows a rank", "microbatch_size = 4", "local_batch_size = 2"],
    ),
    # C7
    (
        {"args": {"n_heads": 3, "n_kv_heads": 3, "head_dim": 16}, "parallelism": {TP: 2}},
        2,
        "model",
        ["n_heads = 3", "= 2"],
    ),
    ({"args": {"dim": 66}}, 1, "model", ["dim = 66", "n_heads = 4"]),
    ({"args": {"hidden_dim": 129}, "parallelism": {TP: 2}}, 2, "model", ["129", "tensor_parallel_degree = 2"]),
    ({"args": {"n_kv_heads": 3}}, 1, "model", ["n_kv_heads = 3"]),
    # C8
    (
        {"training": {"seq_len": 31}, "parallelism": {TP: 2}},
        2,
        "training.seq_len",
        ["= 31", "tensor_parallel_degree (2)", "32 is"],
    ),
    (
        {"training": {"seq_len": 30}, "parallelism": {CP: 4}},
        4,
        "training.seq_len",
        ["(4 x 2 = 8)", "32 is the nearest"],
    ),
    ({"training": {"seq_len": 34}, "parallelism": {CP: 2}}, 2, "training.seq_len", ["(2 x 2 = 4)", "is the nearest"]),
    ({"training": {"seq_len": 36}, "parallelism": {CP: 2, TP: 2}}, 4, "training.seq_len", ["(2 x 2 x 2 = 8)"]),
    ({"training": {"seq_len": 1}, "parallelism": {TP: 2}}, 2, "training.seq_len", ["2 is the nearest"]),
    (
        {"parallelism": {CP: 4, TP: 2, "context_parallel_rotate_method": "ulysses"}},
        8,
        "parallelism.context_parallel_rotate_method",
        ["4 / 2 = 2", "context_parallel_degree = 4", "allgather"],
    ),
    ({"parallelism": {"fsdp_reshard_after_forward": 3}}, 4, "parallelism.fsdp_reshard_after_forward", ["= 3", "= 4"]),
    # C27
    ({"args": {"vocab_size": 200}}, 1, "model.args.vocab_size", ["= 200", str(vocab_size(Model()))]),
    # names and types of the model
    ({"model": {"name": "lama3"}}, 1, "model.name", ['Did you mean "llama3"?']),
    ({"model": {"flavor": "8b"}}, 1, "model.flavor", ['Did you mean "8B"?']),
    ({"args": {"n_layer": 3}}, 1, "model.args.n_layer", ["Did you mean model.args.n_layers?"]),
    ({"args": {"dim": "64"}}, 1, "model.args.dim", ["must be an integer", "64."]),
    ({"args": {"n_heads": 0}}, 1, "model.args.n_heads", ["n_heads = 0", "an integer >= 1"]),
    ({"args": {"n_kv_heads": -2}}, 1, "model.args.n_kv_heads", ["an integer >= 1"]),
    ({"args": {"norm_eps": 0.0}}, 1, "model.args.norm_eps", ["a number > 0"]),
    (
        {"args": {"rope_scaling": {"factr": 2.0}}},
        1,
        "model.args.rope_scaling.factr",
        ["Did you mean model.args.rope_scaling.factor?"],
    ),
    ({"model": {"hf_assets_path": "/no/such/folder"}}, 1, "model.hf_assets_path", ["/no/such/folder"]),
    ({"experimental": {"custom_import": "no_such_module_here"}}, 1, "experimental.custom_import", ["PYTHONPATH"]),
    ({"profiling": {"enable_profiling": True, "profile_freq": 3}}, 1, "profiling.profile_freq", ["3 + 1", "Write 4"]),
    # features that are not here, when the configuration was made in Python
    ({"validation": {"enable": True}}, 1, "validation.enable", ["not supported yet"]),
]


@pytest.mark.parametrize(("sections", "world", "key", "said"), RULES)
def test_a_broken_rule_names_its_key_and_its_numbers(
    sections: dict[str, Any], world: int, key: str, said: list[str]
) -> None:
    found = refused(config(**sections), world)
    assert [problem.key for problem in found] == [key], found
    assert all(part in str(found[0]) for part in said), str(found[0])


@pytest.mark.parametrize("path", ["/no/such/folder", "./no//such/folder/"])
def test_a_key_is_named_once_in_a_message_about_its_value(path: str) -> None:
    (problem,) = refused(config(model={"hf_assets_path": path}), 1)
    assert str(problem) == (
        f'model.hf_assets_path = "{path}": no such folder. Give the folder of a Hugging Face tokenizer, or leave the '
        "key out."
    )


@pytest.mark.parametrize(
    "key", [name for name, field in LlamaArgs.model_fields.items() if "int" in str(field.annotation)]
)
def test_no_size_of_a_model_may_be_zero(key: str) -> None:
    (problem,) = refused(config(args={key: 0}), 1)
    assert (problem.key, problem.value) == (f"model.args.{key}", "0")


def test_all_broken_rules_are_reported_at_once() -> None:
    run = config(
        {TP: 3, PP: 2}, training={"seq_len": 31}, args={"vocab_size": 5, "n_layer": 1}, model={"flavor": "debugmodel"}
    )
    keys = {problem.key for problem in refused(run, 4)}
    assert {f"parallelism.{SHARD}", "training.seq_len", "model.args.n_layer"} == keys


def test_more_tp_ranks_than_kv_heads_are_fine() -> None:
    assert resolve(config({TP: 4}), 4, "cpu").degrees.tp == 4


def test_an_argument_can_be_unset_with_the_word_none() -> None:
    run = config(model={"flavor": "1B"}, args={"n_kv_heads": "none", "rope_scaling": {"factor": 2.0}})
    args = resolve(run, 1, "cpu").model_args
    assert isinstance(args, LlamaArgs)
    assert args.n_kv_heads is None
    assert args.rope_scaling is not None
    assert (args.rope_scaling.factor, args.rope_scaling.original_max_seq_len) == (2.0, 8192)


def warnings(run: Config, world: int = 1) -> str:
    return "\n".join(resolve(run, world, "cpu").warnings)


def test_keys_without_effect_are_named_in_one_warning() -> None:
    run = config(
        {"pipeline_parallel_schedule": "GPipe", "context_parallel_rotate_method": "alltoall"},
        checkpoint={"interval": 7},
        validation={"freq": 3},
        quantize={"linear": {"float8": {"filter_fqns": ["output"]}}},
    )
    (said,) = resolve(run, 1, "cpu").warnings
    for key in (
        "parallelism.pipeline_parallel_schedule (pipeline_parallel_degree = 1)",
        "parallelism.context_parallel_rotate_method (context_parallel_degree = 1)",
        "checkpoint.interval (checkpoint.enable = false)",
        "validation.freq (validation.enable = false)",
        "quantize.linear.float8.filter_fqns",
    ):
        assert key in said
    assert resolve(config({PP: 2, "pipeline_parallel_schedule": "GPipe"}), 2, "cpu").warnings == ()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"warmup_steps": 11}, "warm-up is cut to 10 steps"),
        ({"warmup_steps": 4, "decay_ratio": 0.95}, "the decay is cut to 6 steps"),
        ({"total_steps": 5}, "stays at its final value"),
        ({"warmup_steps": 10}, ""),
        ({"warmup_steps": 4, "decay_ratio": 0.6}, ""),
        ({"decay_ratio": 0.0}, ""),
    ],
)
def test_a_schedule_that_does_not_fit_the_run_is_cut_with_one_warning(section: dict[str, Any], said: str) -> None:
    found = warnings(config(lr_scheduler=section))
    assert said in found
    assert bool(said) == bool(found)


def test_a_cap_that_no_divisor_comes_near_is_a_warning() -> None:
    run = config(training={"global_batch_size": 34, "local_batch_size": 16})
    assert "largest divisor of the 17 rows" in warnings(run, 2)


def test_cpu_offload_is_a_notice_on_the_cpu_only() -> None:
    run = config(training={"enable_cpu_offload": True})
    assert "enable_cpu_offload" in warnings(run)
    assert resolve(run, 1, "cuda").warnings == ()


@pytest.mark.parametrize(
    ("section", "compile", "key", "said"),
    [
        ({}, {}, "activation_checkpoint.mode", "set compile.enable = true"),
        ({}, {"enable": True, "components": ["loss"]}, "activation_checkpoint.mode", '"model" in compile.components'),
        ({}, {"enable": True, "backend": "eager"}, "compile.backend", '"inductor" or "aot_eager"'),
    ],
)
def test_the_memory_budget_needs_compiled_blocks(
    section: dict[str, Any], compile: dict[str, Any], key: str, said: str
) -> None:
    run = config(activation_checkpoint={"mode": "memory_budget", **section}, compile=compile)
    (problem,) = refused(run)
    assert problem.key == key
    assert said in problem.text
    fine = config(activation_checkpoint={"mode": "memory_budget"}, compile={"enable": True})
    assert resolve(fine, 1, "cpu").warnings == ()


def test_the_curve_of_budgets_needs_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    section = {"mode": "memory_budget", "visualize_memory_budget_pareto": True}
    run = config(activation_checkpoint=section, compile={"enable": True})
    assert resolve(run, 1, "cpu").warnings == ()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (problem,) = refused(run)
    assert problem.key == "activation_checkpoint.visualize_memory_budget_pareto"
    assert "pip install matplotlib" in problem.text


def test_a_dry_run_has_no_pipeline_and_a_seed_checkpoint_needs_a_folder_to_write() -> None:
    (problem,) = refused(config({PP: 2}, comm={"mode": "fake_backend"}), 2)
    assert (problem.key, "`titan plan`" in problem.text) == ("comm.mode", True)
    assert resolve(config({TP: 2}, comm={"mode": "fake_backend"}), 2, "cpu").warnings == ()
    for section in ({}, {"enable": True, "load_only": True}):
        (problem,) = refused(config(checkpoint={"create_seed_checkpoint": True, **section}))
        assert problem.key == "checkpoint.create_seed_checkpoint"


def test_keys_whose_purpose_is_served_without_them_are_named() -> None:
    run = config(training={"dataloader": {"num_workers": 2, "pin_memory": True, "prefetch_factor": 4}})
    said = warnings(run)
    assert "training.dataloader.num_workers (reading a row is a slice of a memory map" in said
    assert "training.dataloader.pin_memory" in said
    assert "prefetch_factor" not in said


def test_wandb_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    run = config(metrics={"enable_wandb": True})
    assert resolve(run, 1, "cpu").warnings == ()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (problem,) = refused(run)
    assert (problem.key, problem.value) == ("metrics.enable_wandb", "true")
    assert "pip install wandb" in problem.text


def test_memory_snapshots_are_a_notice_where_there_is_no_cuda_allocator() -> None:
    run = config(profiling={"enable_memory_snapshot": True})
    assert "does nothing on the CPU" in warnings(run)
    assert resolve(run, 1, "cuda").warnings == ()


ACTIVATIONS = {"mode": "full", "memory_budget": 0.3, "selective_ac_option": "op"}


@pytest.mark.parametrize(
    ("section", "idle"),
    [
        ({"mode": "none", **{key: value for key, value in ACTIVATIONS.items() if key != "mode"}}, "memory_budget"),
        (ACTIVATIONS, "selective_ac_option, activation_checkpoint.memory_budget"),
        ({"mode": "selective", "per_op_sac_force_recompute_mm_shapes_by_fqns": []}, 'selective_ac_option is not "op"'),
        ({"mode": "selective", "selective_ac_option": "op", "memory_budget": 0.3}, "memory_budget"),
    ],
)
def test_each_mode_of_checkpointing_names_the_keys_of_the_others(section: dict[str, Any], idle: str) -> None:
    assert idle in warnings(config(activation_checkpoint=section))


def test_profiling_keys_are_idle_by_what_is_switched_on() -> None:
    keys = {"profile_freq": 20, "profiler_active": 2, "save_memory_snapshot_folder": "m"}
    off = warnings(config(profiling=keys))
    assert all(f"profiling.{key}" in off for key in keys)
    traced = warnings(config(profiling={**keys, "enable_profiling": True}))
    assert "profiling.save_memory_snapshot_folder (profiling.enable_memory_snapshot = false)" in traced
    assert "profile_freq" not in traced


def test_a_users_module_registers_its_model_before_the_registry_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_own_model.py").write_text(
        "import dataclasses\nfrom titan.models import registry\n"
        "registry.register(dataclasses.replace(registry.get('llama3'), name='mine'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = config(model={"name": "mine"}, experimental={"custom_import": "my_own_model"})
    try:
        assert resolve(run, 1, "cpu").spec.name == "mine"
    finally:
        sys.modules.pop("my_own_model", None)


def test_a_tokenizer_of_one_id_leaves_nothing_to_predict(tmp_path: Path) -> None:
    Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"model\.hf_assets_path .*: its tokenizer has one id"):
        resolve(config(model={"hf_assets_path": str(tmp_path)}), 1, "cpu")


def test_a_rule_of_a_users_own_arguments_is_said_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_strict_model.py").write_text(
        "import dataclasses\nfrom pydantic import model_validator\nfrom titan.models import registry\n"
        "from titan.models.llama3.args import LlamaArgs\n\n\n"
        "class Args(LlamaArgs):\n    @model_validator(mode='after')\n    def rule(self):\n"
        "        if self.dim > 32:\n            raise ValueError('dim is at most 32 here')\n        return self\n\n\n"
        "small = Args(dim=32, n_heads=2)\n"
        "registry.register(dataclasses.replace("
        "registry.get('llama3'), name='strict', args=Args, flavors={'debugmodel': small}))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (problem,) = refused(config(model={"name": "strict"}, experimental={"custom_import": "my_strict_model"}))
    assert str(problem) == "model.args: dim is at most 32 here"


def test_a_users_module_that_fails_is_one_problem_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_broken_model.py").write_text("x = 1\ny = x / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    (problem,) = refused(config(experimental={"custom_import": "my_broken_model"}))
    assert problem.key == "experimental.custom_import"
    assert "ZeroDivisionError" in problem.text
    assert "my_broken_model.py:2" in problem.text


@pytest.mark.parametrize(
    ("parallelism", "world"),
    [
        ({TP: 2}, 2),
        ({PP: 2, "pipeline_parallel_schedule": "ZBVZeroBubble"}, 2),
        ({CP: 2}, 2),
        ({PP: 2, TP: 2, SHARD: 2}, 8),
        ({PP: 2, "pipeline_parallel_schedule": "DualPipeV", SHARD: 4}, 8),
        ({REPLICATE: 2, CP: 2, TP: 2}, 8),
    ],
)
def test_the_debug_configuration_runs_at_other_degrees_with_no_other_edit(
    parallelism: dict[str, Any], world: int
) -> None:
    arguments = [f"--parallelism.{key}={value}" for key, value in parallelism.items()]
    run = load(CONFIGS / "llama3" / "debug.toml", arguments)
    assert world_size_wanted(run, "cpu") == world
    assert resolve(run, world, "cpu").batch.global_rows == 32
