"""Names of 2024 and early 2025 that are still in many public files, each with its place of today.

A table, read when a key is not known: an old name is answered with its new place instead of a guess.
"""

from __future__ import annotations

_SAME_KEY = {
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
}

_OTHERWISE = {
    "experimental.pipeline_parallel_microbatches": "now parallelism.pipeline_parallel_microbatch_size, in rows: "
    "local batch / number of microbatches.",
    "experimental.pipeline_parallel_split_points": "now parallelism.module_fqns_per_model_part.",
    "parallelism.pipeline_parallel_split_points": "now parallelism.module_fqns_per_model_part.",
    "checkpoint.interval_type": "gone: checkpoint.interval is in steps. Delete this line.",
    "model.norm_type": "gone: the norm is a property of the model. Delete this line.",
    "metrics.rank_0_only": "now metrics.save_for_all_ranks, with the opposite meaning; its default is what true said.",
    "metrics.enable_color_printing": "now metrics.disable_color_printing, with the opposite meaning.",
    "optimizer.fused": 'now optimizer.implementation = "fused".',
    "optimizer.foreach": 'now optimizer.implementation = "foreach".',
    "float8": "now [quantize.linear.float8], with the converter named in model.converters; not supported here.",
    "float8.enable_float8_linear": "now a converter named in model.converters; not supported here.",
    "mx": "now [quantize.linear.mx], with the converter named in model.converters; not supported here.",
}


def new_place(key: str) -> str | None:
    """What to say to someone who wrote an old name; None where it is none."""
    if key in _SAME_KEY:
        return f"this key is now {_SAME_KEY[key]}."
    return _OTHERWISE.get(key)
