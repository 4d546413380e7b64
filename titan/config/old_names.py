"""Names of 2024 and early 2025 that are still in many public files, each with its place of today.

Tables, read when a key is not known (an old name is answered with its new place instead of a guess) and by
`titan config migrate`, which rewrites a file.
"""

from __future__ import annotations

SAME = {
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
    "experimental.pipeline_parallel_schedule_csv": "parallelism.pipeline_parallel_schedule_csv",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "experimental.context_parallel_rotate_method": "parallelism.context_parallel_rotate_method",
    "experimental.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.batch_size": "training.local_batch_size",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "training.compile": "compile.enable",
    "training.seed": "debug.seed",
    "training.deterministic": "debug.deterministic",
    "lr_scheduler.lr_min": "lr_scheduler.min_lr_factor",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "checkpoint.model_weights_only": "checkpoint.last_save_model_only",
    "checkpoint.last_save_model_weights_only": "checkpoint.last_save_model_only",
    "checkpoint.initial_load_model_weights_only": "checkpoint.initial_load_model_only",
    "memory_estimation.enabled": "memory_estimation.enable",
    "validation.enabled": "validation.enable",
    "job.print_args": "job.print_config",
    "model.tokenizer_path": "model.hf_assets_path",  # still read, and moved
    "experimental.custom_args_module": "job.custom_config_module",  # still read
    "float8.enable_fsdp_float8_all_gather": "quantize.linear.float8.enable_fsdp_float8_all_gather",
    "float8.precompute_float8_dynamic_scale_for_fsdp": (
        "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"
    ),
    "float8.recipe_name": "quantize.linear.float8.recipe_name",
    "float8.filter_fqns": "quantize.linear.float8.filter_fqns",
    "float8.emulate": "quantize.linear.float8.emulate",
    "mx.recipe_name": "quantize.linear.mx.recipe_name",
    "mx.filter_fqns": "quantize.linear.mx.filter_fqns",
    "mx.mxfp8_dim1_cast_kernel_choice": "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice",
}
"""The same value under a new name."""

INVERSE = {
    "metrics.rank_0_only": "metrics.save_for_all_ranks",
    "metrics.enable_color_printing": "metrics.disable_color_printing",
}
"""The opposite boolean under a new name."""

GONE = {
    "checkpoint.interval_type": "gone: checkpoint.interval is in steps. Delete this line.",
    "model.norm_type": "gone: the norm is a property of the model. Delete this line.",
}

COMPUTED = {
    "experimental.pipeline_parallel_microbatches": "now parallelism.pipeline_parallel_microbatch_size, in rows: "
    "local batch / number of microbatches.",
    "experimental.pipeline_parallel_split_points": "now parallelism.module_fqns_per_model_part.",
    "parallelism.pipeline_parallel_split_points": "now parallelism.module_fqns_per_model_part.",
    "optimizer.fused": 'now optimizer.implementation = "fused".',
    "optimizer.foreach": 'now optimizer.implementation = "foreach".',
    "float8.enable_float8_linear": 'now "quantize.linear.float8" in model.converters; not supported here.',
}
"""What takes more than a name."""

_SECTIONS = {
    "float8": "now [quantize.linear.float8], with the converter named in model.converters; not supported here.",
    "mx": "now [quantize.linear.mx], with the converter named in model.converters; not supported here.",
}


def new_place(key: str) -> str | None:
    """What to say to someone who wrote an old name; None where it is none."""
    if key in SAME:
        return f"this key is now {SAME[key]}."
    if key in INVERSE:
        return f"now {INVERSE[key]}, with the opposite meaning."
    return GONE.get(key) or COMPUTED.get(key) or _SECTIONS.get(key)
