"""Which single change would make a run fit: the usual ones are planned in turn, and the fastest that fits is named.

A change keeps what is trained: the global batch stays. More pipeline ranks or tensor parallelism come at the cost of
data-parallel ranks, so that the world stays too; only if nothing else helps is a larger world tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from titan.config import ConfigError, Resolved, resolve
from titan.plan.build import Plan, peak, step_seconds
from titan.plan.request import changed

_PARALLELISM = "parallelism."


def find(plan: Plan) -> str | None:
    """The change as an override with what it brings, or None where no single one is enough."""
    limit, target = plan.target.limit, plan.target
    if plan.fits or limit is None:
        return None
    fitting: list[tuple[float, str]] = []
    for words, run in _runs(plan):
        try:
            size = peak(run, target)
        except ValueError:
            continue  # a schedule that cannot run so
        if size <= limit:
            tokens = run.batch.global_rows * run.config.training.seq_len
            seconds = step_seconds(run, target, plan.request.extras)
            rate = tokens / seconds / run.degrees.world_size
            fitting.append((rate, f"{words}: {size / 2**30:.1f} GiB, {rate:,.0f} tokens/s a device"))
    return max(fitting)[1] if fitting else None


def _runs(plan: Plan) -> Iterator[tuple[str, Resolved]]:
    resolved = plan.resolved
    config = resolved.config
    world = resolved.degrees.world_size
    for changes, size in _changes(resolved):
        try:
            run = resolve(changed(config, changes), size, plan.target.type)
        except ConfigError:
            continue
        words = " ".join(f"--{key}={_text(value)}" for key, value in changes.items() if value != -1)
        yield words if size == world else f"{words} --world-size={size}".strip(), run


def _changes(resolved: Resolved) -> Iterator[tuple[dict[str, Any], int]]:
    """(changes by key, world size)."""
    config, degrees, batch = resolved.config, resolved.degrees, resolved.batch
    world, section = degrees.world_size, config.activation_checkpoint
    if section.mode != "full":
        if section.mode == "none" or section.selective_ac_option != "op":
            yield (
                {"activation_checkpoint.mode": "selective", "activation_checkpoint.selective_ac_option": "op"},
                world,
            )
        yield {"activation_checkpoint.mode": "full"}, world
    least = batch.microbatch_size if degrees.pp > 1 else 1
    for rows in (batch.rows // 2, batch.rows // 4, 1):
        if least <= rows < batch.rows and config.training.global_batch_size != -1:
            yield {"training.local_batch_size": rows}, world
    if degrees.pp > 1:
        if batch.microbatch_size > 1:
            yield {f"{_PARALLELISM}pipeline_parallel_microbatch_size": 1}, world
        if config.parallelism.fsdp_reshard_after_forward != "always":
            yield {f"{_PARALLELISM}fsdp_reshard_after_forward": "always"}, world
    elif config.parallelism.fsdp_reshard_after_forward == "never":
        yield {f"{_PARALLELISM}fsdp_reshard_after_forward": "default"}, world
    if degrees.dp_replicate > 1:
        yield {f"{_PARALLELISM}data_parallel_replicate_degree": 1, _SHARD: -1}, world
    for name, degree in (("tensor", degrees.tp), ("pipeline", degrees.pp), ("context", degrees.cp)):
        yield {f"{_PARALLELISM}{name}_parallel_degree": 2 * degree, _SHARD: -1}, world
    if config.training.dtype == "float32":
        yield {"training.dtype": "bfloat16"}, world
    if not config.training.enable_cpu_offload:
        yield {"training.enable_cpu_offload": True}, world
    yield {_SHARD: -1}, 2 * world


_SHARD = "parallelism.data_parallel_shard_degree"


def _text(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)
