"""What can be said of a run before its first step: the facts of its header, and the rates it will be measured against.

Pure functions of the resolved configuration, the data's length and the name of a device, so that the trainer holds no
text and a test needs no processes.
"""

from __future__ import annotations

from titan.config import Resolved
from titan.metrics.console import header
from titan.metrics.peak import peak_flops
from titan.metrics.throughput import Throughput


def describe(resolved: Resolved, *, rows_per_epoch: int, world_size: int, device: str) -> list[str]:
    """The header of the run, a line a fact.

    Args:
        resolved: the configuration at this world size.
        rows_per_epoch: of the data.
        world_size: processes of the job; 1 has no mesh.
        device: what to call this process's device.
    """
    config, batch, degrees = resolved.config, resolved.batch, resolved.degrees
    rows = (
        f"{batch.global_rows} rows of {config.training.seq_len} tokens a step = {degrees.batch} batch ranks x "
        f"{batch.accumulation} accumulation x {batch.rows} rows"
    )
    parameters = resolved.spec.parameter_count(resolved.model_args)
    return header(
        [
            ("run", config.job.description),
            ("model", f"{config.model.name} {config.model.flavor}, {parameters:,} parameters"),
            ("mesh", f"{degrees} ({world_size} processes)" if world_size > 1 else "one process"),
            ("batch", rows + (f" in {batch.microbatches} microbatches" if degrees.pp > 1 else "")),
            ("data", f"{config.training.dataset}, {rows_per_epoch:,} rows an epoch"),
            ("device", device),
            ("precision", f"masters {config.training.dtype}, compute {config.training.mixed_precision_param}"),
            ("run folder", config.job.dump_folder),
        ]
    )


def run_throughput(resolved: Resolved, *, world_size: int, device_name: str) -> Throughput:
    """The clock of the run; it starts now. A utilisation is reported only where the peak of `device_name` is known."""
    training = resolved.config.training
    one = peak_flops(device_name, training.mixed_precision_param)
    return Throughput(
        flops_per_token=resolved.spec.flops_per_token(resolved.model_args, training.seq_len),
        peak=None if one is None else one * world_size,
        devices=world_size,
    )
