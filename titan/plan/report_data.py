"""A plan as plain data: what `--json` prints, and what the terminal and the page show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from titan.plan.build import Plan
from titan.plan.facts import Memory, Traffic
from titan.plan.schedule import in_flight
from titan.plan.search import Found

GIB = 2**30
DEGREES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
GROUPS = (
    "parameters",
    "optimizer state",
    "gradients",
    "unsharded parameters",
    "unsharded gradients",
    "activations",
    "logits and loss",
    "communication buffers",
    "other",
)
"""Of what a rank holds, from what stays to what passes."""


def grouped(memory: Memory) -> dict[str, int]:
    """Bytes at the peak by `GROUPS`; those that are empty are left out."""
    found = dict.fromkeys(GROUPS, 0)
    for item, size in memory.items.items():
        name = item.partition(".")[0]
        found[name if name in found else "other"] += size
    return {name: size for name, size in found.items() if size}


def merged(traffic: Iterable[Traffic]) -> list[Traffic]:
    """Of all pipeline ranks, the one that moves most of each kind: what a link has to carry."""
    most: dict[tuple[str, str, str], Traffic] = {}
    for line in traffic:
        key = line.dimension, line.operation, line.purpose
        if key not in most or line.bytes > most[key].bytes:
            most[key] = line
    return sorted(most.values(), key=lambda line: (line.dimension, -line.bytes))


def data(plan: Plan) -> dict[str, Any]:
    """The whole plan: bytes as integers, times in seconds, rates in tokens a second."""
    resolved, time, target = plan.resolved, plan.time, plan.target
    degrees, batch, config = resolved.degrees, resolved.batch, resolved.config
    return {
        "model": {
            "name": config.model.name,
            "flavor": config.model.flavor,
            "parameters": resolved.spec.parameter_count(resolved.model_args),
            "flops_per_token": resolved.spec.flops_per_token(resolved.model_args, config.training.seq_len),
        },
        "device": {
            "name": target.device.name,
            "title": target.device.title,
            "limit": target.limit,
            "per_node": target.per_node,
            "source": target.device.source,
        },
        "world_size": degrees.world_size,
        "degrees": {name: getattr(degrees, name) for name in DEGREES},
        "batch": {
            "global_rows": batch.global_rows,
            "rows": batch.rows,
            "accumulation": batch.accumulation,
            "microbatch_size": batch.microbatch_size,
            "microbatches": batch.microbatches,
            "seq_len": config.training.seq_len,
        },
        "mesh": [
            {
                "dimension": group.dimension,
                "size": group.size,
                "ranks": list(group.ranks),
                "inside_node": group.inside,
                "bandwidth": group.bandwidth,
                "collectives": sorted({line.operation for line in plan.traffic if line.dimension == group.dimension}),
            }
            for group in plan.groups.values()
        ],
        "memory": [
            {
                "rank": memory.rank,
                "stages": list(memory.stages),
                "peak": memory.peak,
                "where": memory.where,
                "items": memory.items,
                "detail": memory.detail,
                "microbatches_in_flight": in_flight(plan.time.programs[memory.rank]),
            }
            for memory in plan.memory
        ],
        "fits": plan.fits,
        "headroom": plan.headroom,
        "remedy": plan.remedy,
        "traffic": [
            {
                "rank": line.rank,
                "dimension": line.dimension,
                "operation": line.operation,
                "purpose": line.purpose,
                "group_size": line.group_size,
                "calls": line.calls,
                "bytes": line.bytes,
                "wire_bytes": line.wire_bytes,
                "exposed": line.exposed,
            }
            for line in plan.traffic
        ],
        "time": {
            "step_seconds": time.seconds,
            "terms": dict(time.terms),
            "tokens_per_second": time.tokens_per_second,
            "tokens_per_second_per_device": time.tokens_per_second_per_device,
            "mfu": time.mfu,
            "model_flops": time.model_flops,
            "bubble": time.timeline.bubble if degrees.pp > 1 else 0.0,
        },
        "notes": list(plan.request.notes),
        "warnings": list(resolved.warnings),
    }


def search_data(found: Found) -> dict[str, Any]:
    """What a search found."""
    return {
        "layouts": [
            {
                "degrees": {name: getattr(candidate.resolved.degrees, name) for name in DEGREES},
                "schedule": candidate.schedule,
                "step_seconds": candidate.seconds,
                "tokens_per_second_per_device": candidate.tokens,
                "peak": candidate.peak,
                "fits": candidate.fits,
            }
            for candidate in found.ranked
        ],
        "refused": {
            key: {"layouts": refusal.count, "example": refusal.layout, "text": refusal.text}
            for key, refusal in found.refused.items()
        },
        "too_large": found.too_large,
    }


def gib(size: float) -> str:
    """Bytes for people."""
    for unit, name in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(size) >= unit / 10:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} B"


def seconds(value: float) -> str:
    """Seconds for people."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def ranks(group: tuple[int, ...]) -> str:
    """Ranks of a group, shortened: 0-7, or 0, 8, ... 56."""
    step = group[1] - group[0] if len(group) > 1 else 1
    if step == 1:
        return f"{group[0]}-{group[-1]}"
    return ", ".join(map(str, group)) if len(group) <= 4 else f"{group[0]}, {group[1]}, ... {group[-1]}"


def verdict(plan: Plan) -> str:
    """One sentence about memory."""
    heaviest = plan.heaviest
    holds = f"{gib(heaviest.peak)} at the peak of pp rank {heaviest.rank} ({heaviest.where})"
    if plan.headroom is None or plan.target.limit is None:
        return f"{holds}; no limit is known for this device"
    if plan.fits:
        return f"fits: {holds}, {gib(plan.headroom)} of {gib(plan.target.limit)} left"
    return f"does not fit: {holds}, {gib(-plan.headroom)} more than the {gib(plan.target.limit)} there are"
