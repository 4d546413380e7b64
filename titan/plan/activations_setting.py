"""What the activations of a microbatch depend on, as one value that can be compared: equal settings share a trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from titan.config import Resolved
from titan.models.registry import ModelArgs
from titan.parallelisms.context import Method
from titan.parallelisms.context.order import LoadBalancer
from titan.parallelisms.stages import splits_backward
from titan.plan.parameters import block_kinds


@dataclass(frozen=True)
class Setting:
    """All that the activations of a microbatch depend on.

    Attributes:
        rows, seq_len: of a microbatch, before context parallelism cuts the sequence.
        param_dtype, master_dtype: names of torch dtypes.
        single: one process, which has no FSDP and works on copies where the two dtypes differ.
        piped: stages keep their output until the backward.
        mode, option: of activation checkpointing.
        fused_norms: norms are one kernel, as on accelerators.
    """

    model: str
    args: ModelArgs
    tp: int
    cp: int
    method: Method
    balancer: LoadBalancer
    loss_parallel: bool
    rows: int
    seq_len: int
    param_dtype: str
    master_dtype: str
    single: bool
    piped: bool
    mode: str
    option: str
    fused_norms: bool = False

    def checkpointed(self, layer: int) -> bool:
        """Whether this layer is recomputed as a whole."""
        if self.mode != "selective" or self.option == "op":
            return self.mode != "none"
        return layer % int(self.option) == 0

    def kind(self, layer: int) -> str:
        """Name of the layer's kind in the segments."""
        shape = block_kinds(self.model, self.args)[layer]
        return f"block {shape}{' checkpointed' if self.checkpointed(layer) else ''}"


def setting_of(resolved: Resolved, device_type: str = "cpu") -> Setting:
    """What a configuration says about activations on a type of device."""
    config, degrees, batch = resolved.config, resolved.degrees, resolved.batch
    parallelism, checkpoint = config.parallelism, config.activation_checkpoint
    return Setting(
        model=resolved.spec.name,
        args=resolved.model_args,
        tp=degrees.tp,
        cp=degrees.cp,
        method=parallelism.context_parallel_rotate_method if degrees.cp > 1 else "allgather",
        balancer=parallelism.context_parallel_load_balancer if degrees.cp > 1 else None,
        loss_parallel=not parallelism.disable_loss_parallel,
        rows=batch.microbatch_size if degrees.pp > 1 else batch.rows,
        seq_len=config.training.seq_len,
        param_dtype=config.training.mixed_precision_param,
        master_dtype=config.training.dtype,
        single=degrees.world_size == 1,
        piped=degrees.pp > 1,
        mode="none" if checkpoint.mode == "memory_budget" else checkpoint.mode,  # the compiler's: an upper bound
        option=checkpoint.selective_ac_option if checkpoint.mode == "selective" else "",
        fused_norms=device_type != "cpu",
    )


def split_backward(resolved: Resolved) -> bool:
    """Whether input and weight gradients are computed apart: by the schedule, and not of compiled blocks, whose
    backward is one node that both halves go through.
    """
    compile = resolved.config.compile
    if compile.enable and "model" in compile.components:
        return False
    parallelism = resolved.config.parallelism
    csv = parallelism.pipeline_parallel_schedule_csv
    return resolved.degrees.pp > 1 and splits_backward(
        parallelism.pipeline_parallel_schedule, Path(csv) if csv else None
    )
