"""Keys that were set and have no effect in this run: a pipeline schedule with one pipeline rank, say.

Not an error, since one file serves many layouts; but a setting that does nothing must not go unnoticed, so all of them
are named in one warning. A key counts as set when it differs from its default.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from titan.config.schema import Config
from titan.config.unsupported import INSTEAD, NOT_NEEDED


def warning(config: Config) -> str | None:
    """One sentence that names every idle key with its reason, or None."""
    named, defaults = [], type(config)()
    for reason, keys in _idle(config):
        if found := [key for key in keys if _is_set(config, defaults, key)]:
            named.append(f"{', '.join(found)} ({reason})")
    return f"without effect in this run: {'; '.join(named)}." if named else None


def _idle(config: Config) -> Iterator[tuple[str, list[str]]]:
    parallelism, checkpoint, training = config.parallelism, config.checkpoint, config.training
    stages = ["module_fqns_per_model_part", *_beginning(parallelism, "pipeline_parallel_")]
    stages.remove("pipeline_parallel_degree")
    if parallelism.pipeline_parallel_degree == 1:
        yield "pipeline_parallel_degree = 1", _in("parallelism", stages)
    else:
        split = ["pipeline_parallel_layers_per_stage", *_beginning(parallelism, "pipeline_parallel_first")]
        split += _beginning(parallelism, "pipeline_parallel_last")
        if parallelism.module_fqns_per_model_part is not None:
            yield "module_fqns_per_model_part is set", _in("parallelism", split)
        if parallelism.pipeline_parallel_schedule_csv:
            yield "pipeline_parallel_schedule_csv is set", ["parallelism.pipeline_parallel_schedule"]
        yield "there are no experts", ["parallelism.pipeline_parallel_expert_parallel_overlap"]
    if parallelism.context_parallel_degree == 1:
        keys = _beginning(parallelism, "context_parallel_")
        yield "context_parallel_degree = 1", _in("parallelism", keys)
    if parallelism.tensor_parallel_degree == 1:
        yield "tensor_parallel_degree = 1", ["parallelism.disable_loss_parallel"]
    for section, switch in (
        ("checkpoint", "enable"),
        ("compile", "enable"),
        ("validation", "enable"),
        ("memory_estimation", "enable"),
        ("fault_tolerance", "enable"),
    ):
        if not getattr(getattr(config, section), switch):
            yield f"{section}.{switch} = false", _leaves(getattr(config, section), f"{section}.")
    yield from _profiling(config)
    if checkpoint.enable:
        if checkpoint.initial_load_path is None:
            yield "initial_load_path is not set", ["checkpoint.initial_load_model_only"]
        if not checkpoint.last_save_model_only:
            yield "last_save_model_only = false", ["checkpoint.export_dtype"]
        if checkpoint.load_only:
            saving = ["interval", "keep_latest_k", "async_mode", "enable_first_step_checkpoint", "export_dtype"]
            yield "load_only = true", _in("checkpoint", saving)
        yield "torchft is not supported", ["checkpoint.enable_ft_dataloader_checkpoints"]
    yield from _activation_checkpoint(config)
    if training.dataset == "python_stdlib":
        yield 'dataset = "python_stdlib"', _in("training", ["dataset_split", "dataset_config", "text_column"])
    for key, reason in NOT_NEEDED.items():
        yield reason, [key]
    if not config.metrics.enable_tensorboard:
        yield "enable_tensorboard = false", ["metrics.save_tb_folder"]
    if not config.debug.deterministic:
        yield "deterministic = false", ["debug.deterministic_warn_only"]
    yield "no model.converters", _leaves(config.quantize, "quantize.")


def _profiling(config: Config) -> Iterator[tuple[str, list[str]]]:
    section = config.profiling
    tracing = ["save_traces_folder", "profiler_active", "profiler_warmup"]
    off = [] if section.enable_memory_snapshot else ["save_memory_snapshot_folder"]
    if not section.enable_profiling:
        yield "enable_profiling = false", _in("profiling", tracing + ([] if not off else ["profile_freq"]))
    if off:
        yield "profiling.enable_memory_snapshot = false", _in("profiling", off)


def _activation_checkpoint(config: Config) -> Iterator[tuple[str, list[str]]]:
    section, mode = "activation_checkpoint", config.activation_checkpoint.mode
    if mode == "none":
        keys = _leaves(config.activation_checkpoint, f"{section}.")
        yield 'mode = "none"', [key for key in keys if key != f"{section}.mode"]
        return
    by_operator = ["per_op_sac_force_recompute_mm_shapes_by_fqns"]
    wrapped = ["early_stop", "preserve_rng_state", "determinism_check", "debug"]
    budget = ["memory_budget", "visualize_memory_budget_pareto"]
    if mode != "selective":
        rest = wrapped if mode == "memory_budget" else budget
        yield f'mode = "{mode}"', _in(section, ["selective_ac_option", *by_operator, *rest])
        return
    yield 'mode = "selective"', _in(section, budget)
    if config.activation_checkpoint.selective_ac_option != "op":
        yield 'selective_ac_option is not "op"', _in(section, by_operator)


def _beginning(model: BaseModel, start: str) -> list[str]:
    return [name for name in type(model).model_fields if name.startswith(start)]


def _in(section: str, names: list[str]) -> list[str]:
    return [f"{section}.{name}" for name in names]


def _leaves(model: BaseModel, prefix: str) -> list[str]:
    keys = []
    for name in type(model).model_fields:
        value = getattr(model, name)
        keys += _leaves(value, f"{prefix}{name}.") if isinstance(value, BaseModel) else [f"{prefix}{name}"]
    return keys


def _is_set(config: Config, defaults: Config, key: str) -> bool:
    value: object = config
    default: object = defaults
    for name in key.split("."):
        value, default = getattr(value, name), getattr(default, name)
    return value != default and key not in INSTEAD
