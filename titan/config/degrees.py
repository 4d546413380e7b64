"""From the degrees in the configuration to those of the mesh: the one -1 becomes a number, and the product must be the
world.

Pure functions of the configuration and the world size. Only `data_parallel_shard_degree` may be -1 (the schema says
so).
"""

from __future__ import annotations

from titan.config.layout import Degrees
from titan.config.problems import Problem
from titan.config.schema import Config
from titan.config.schema_parallelism import Parallelism

_KEYS = {
    "pp": "pipeline_parallel_degree",
    "dp_replicate": "data_parallel_replicate_degree",
    "dp_shard": "data_parallel_shard_degree",
    "cp": "context_parallel_degree",
    "tp": "tensor_parallel_degree",
}


def world_size_wanted(config: Config, device_type: str, visible_devices: int = 1) -> int:
    """How many processes the degrees ask for.

    Args:
        config: read for its parallelism section.
        device_type: on "cpu" a shard degree of -1 counts as 1; on accelerators it takes what `visible_devices` leaves.
        visible_devices: accelerators that may be used; no effect on the CPU or where no degree is -1.
    """
    least = as_written(config.parallelism).world_size
    if config.parallelism.data_parallel_shard_degree != -1 or device_type == "cpu":
        return least
    return max(least, visible_devices // least * least)


def as_written(parallelism: Parallelism) -> Degrees:
    """The degrees with -1 counted as 1."""
    return Degrees(**{name: max(1, getattr(parallelism, key)) for name, key in _KEYS.items()})


def resolve_degrees(parallelism: Parallelism, world_size: int) -> tuple[Degrees | None, list[Problem]]:
    """The degrees whose product is `world_size`, or why there are none: each degree, the product, the world."""
    written = as_written(parallelism)
    wildcard = parallelism.data_parallel_shard_degree == -1
    product = written.world_size
    if not wildcard and product == world_size:
        return written, []
    if wildcard and world_size % product == 0:
        return Degrees(written.pp, written.dp_replicate, world_size // product, written.cp, written.tp), []
    factors = " x ".join(
        f"{key} {getattr(parallelism, key)}" for name, key in _KEYS.items() if not (wildcard and name == "dp_shard")
    )
    processes = f"{world_size} process{'' if world_size == 1 else 'es'}"
    if wildcard:
        text = f"{factors} = {product}, which does not divide {processes}: start a multiple of {product} processes."
        return None, [Problem("parallelism.data_parallel_shard_degree", text, "-1")]
    text = (
        f"{factors} = {product}, and there are {processes}: start {product} processes (NPROC={product} on one "
        "machine), "
        "or set data_parallel_shard_degree = -1 for the ranks that are left."
    )
    return None, [Problem("parallelism", text)]
