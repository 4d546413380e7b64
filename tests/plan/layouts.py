"""Layouts at which the plan is compared with real runs: processes, overrides, and the sizes of the model."""

from __future__ import annotations

from typing import Any

Layout = dict[str, dict[str, Any]]

SMALL: dict[str, Any] = {
    "dim": 256,
    "n_layers": 4,
    "n_heads": 8,
    "n_kv_heads": 4,
    "hidden_dim": 768,
    "vocab_size": 4096,
}
"""5 M parameters: seconds a run."""
LARGE: dict[str, Any] = {
    "dim": 768,
    "n_layers": 6,
    "n_heads": 12,
    "n_kv_heads": 4,
    "hidden_dim": 2048,
    "vocab_size": 12_288,
}
"""57 M parameters, 227 MB in float32."""
TINY: dict[str, Any] = {
    "dim": 64,
    "n_layers": 4,
    "n_heads": 8,
    "n_kv_heads": 2,
    "hidden_dim": 96,
    "vocab_size": 503,
}
"""For bytes that are sent, which depend on no weight."""


def layout(checkpointing: str | None = None, training: dict[str, Any] | None = None, **parallelism: Any) -> Layout:
    """Overrides from degrees by their short names; `checkpointing` is none, full, op, or n."""
    names = {"pp": "pipeline_parallel", "tp": "tensor_parallel", "cp": "context_parallel"}
    names |= {"dp_shard": "data_parallel_shard", "dp_replicate": "data_parallel_replicate"}
    named = {f"{names[name]}_degree" if name in names else name: value for name, value in parallelism.items()}
    found: Layout = {"parallelism": named}
    if checkpointing == "full":
        found["activation_checkpoint"] = {"mode": "full"}
    elif checkpointing:
        found["activation_checkpoint"] = {"mode": "selective", "selective_ac_option": checkpointing}
    if training:
        found["training"] = training
    return found


BF16 = {"mixed_precision_param": "bfloat16"}
TWICE = {"local_batch_size": 4}
"""Two rows-parts a step: on one batch rank, two accumulation steps."""

MEMORY: dict[str, tuple[int, Layout]] = {
    "one process": (1, layout()),
    "one process, accumulation, bf16": (1, layout(training=BF16 | TWICE)),
    "one process, full checkpointing": (1, layout("full")),
    "dp_shard 2": (2, layout(dp_shard=2)),
    "dp_shard 2, bf16, accumulation": (2, layout(training=BF16 | {"local_batch_size": 2}, dp_shard=2)),
    "dp_shard 2, kept gathered, accumulation": (
        2,
        layout(training={"local_batch_size": 2}, dp_shard=2, fsdp_reshard_after_forward="never"),
    ),
    "dp_shard 2, checkpointing by operator": (2, layout("op", dp_shard=2)),
    "dp_replicate 2": (2, layout(dp_replicate=2)),
    "tp 2": (2, layout(tp=2)),
    "tp 2, checkpointing by operator, bf16": (2, layout("op", BF16, tp=2)),
    "cp 2, all-gather": (2, layout(cp=2)),
    "cp 2, ring": (2, layout(cp=2, context_parallel_rotate_method="alltoall")),
    "cp 2, Ulysses": (2, layout(cp=2, context_parallel_rotate_method="ulysses")),
    "pp 2, 1F1B": (2, layout(pp=2)),
    "pp 2, 1F1B, bf16, full checkpointing": (2, layout("full", BF16, pp=2)),
    "pp 2, GPipe": (2, layout(pp=2, pipeline_parallel_schedule="GPipe")),
    "pp 2, Interleaved1F1B": (2, layout(pp=2, pipeline_parallel_schedule="Interleaved1F1B")),
    "pp 2, ZBVZeroBubble": (2, layout(pp=2, pipeline_parallel_schedule="ZBVZeroBubble")),
    "pp 2, InterleavedZeroBubble, bf16": (
        2,
        layout(None, BF16, pp=2, pipeline_parallel_schedule="InterleavedZeroBubble"),
    ),
    "pp 2, DualPipeV, every second block": (2, layout("2", pp=2, pipeline_parallel_schedule="DualPipeV")),
    "tp 2 x dp_shard 2": (4, layout(tp=2, dp_shard=2)),
    "pp 2 x dp_shard 2, 1F1B": (4, layout(pp=2, dp_shard=2)),
}

TRAFFIC: dict[str, tuple[int, Layout]] = {
    "dp_shard 2, full checkpointing, accumulation": (2, layout("full", {"local_batch_size": 2}, dp_shard=2)),
    "dp_shard 2, kept gathered, accumulation": (
        2,
        layout(training={"local_batch_size": 2}, dp_shard=2, fsdp_reshard_after_forward="never"),
    ),
    "tp 2, gathered logits": (2, layout(tp=2, disable_loss_parallel=True)),
    "tp 2, full checkpointing, bf16": (2, layout("full", BF16, tp=2)),
    "cp 2, all-gather": (2, layout(cp=2)),
    "cp 2, ring, full checkpointing": (2, layout("full", cp=2, context_parallel_rotate_method="alltoall")),
    "cp 2, Ulysses": (2, layout(cp=2, context_parallel_rotate_method="ulysses")),
    "pp 2, 1F1B, tied": (2, layout(pp=2)),
    "pp 2, DualPipeV": (2, layout(pp=2, pipeline_parallel_schedule="DualPipeV")),
    "dp_replicate 2 x dp_shard 2": (4, layout(dp_replicate=2, dp_shard=2)),
    "dp_shard 4, resharded over 2": (4, layout(dp_shard=4, fsdp_reshard_after_forward=2)),
    "tp 2 x dp_shard 2, by operator, bf16, accumulation": (
        4,
        layout("op", BF16 | {"local_batch_size": 2}, tp=2, dp_shard=2),
    ),
    "tp 4, replicated KV heads": (4, layout(tp=4)),
    "cp 4, ring": (4, layout(cp=4, context_parallel_rotate_method="alltoall")),
    "pp 2 x tp 2, ZBVZeroBubble, full checkpointing": (
        4,
        layout("full", pp=2, tp=2, pipeline_parallel_schedule="ZBVZeroBubble", pipeline_parallel_microbatch_size=2),
    ),
    "pp 2 x cp 2, Interleaved1F1B, bf16": (
        4,
        layout(None, BF16, pp=2, cp=2, pipeline_parallel_schedule="Interleaved1F1B"),
    ),
    "pp 2 x dp_shard 2, resharded, accumulation": (
        4,
        layout(training={"local_batch_size": 2}, pp=2, dp_shard=2, fsdp_reshard_after_forward="always"),
    ),
}
