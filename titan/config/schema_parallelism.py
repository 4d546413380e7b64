"""The parallelism section: degrees, and how each kind of parallelism works. Names are those of torchtitan 0.2.2.

Changing anything here changes how a run is spread over processes, never what it computes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from titan.config.section import Degree, NonEmpty, NonNegativeInt, PositiveInt, PositiveOrRest, Rule, Section, WordNone

Schedule = Literal[
    "1F1B", "GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"
]


class Parallelism(Section):
    """Degrees of the mesh; their product is the number of processes."""

    data_parallel_replicate_degree: Degree = 1
    """Replicas of the (sharded) model: DDP alone, HSDP together with sharding."""
    data_parallel_shard_degree: PositiveOrRest = -1
    """Ranks over which parameters, gradients and optimizer state are sharded (FSDP). -1: the ranks that are left; on
    CPU without a launcher that says more, 1."""
    fsdp_reshard_after_forward: Annotated[
        Literal["default", "always", "never"] | PositiveInt,
        Rule("one of 'default', 'always', 'never', or an integer >= 1 (the size of the group to reshard to)"),
    ] = "default"
    """Free the gathered parameters between forward and backward. default: yes, but not under a pipeline. An integer,
    ours: keep them sharded over groups of that many ranks."""
    tensor_parallel_degree: Degree = 1
    """Ranks over which each matrix is cut; activations between blocks are cut along the sequence."""
    disable_loss_parallel: bool = False
    """Gather the logits before the loss instead of computing it on vocabulary shards."""
    enable_async_tensor_parallel: bool = False
    """Not supported: overlap of products and collectives by the compiler."""
    pipeline_parallel_degree: Degree = 1
    """Ranks over which the layers are spread."""
    pipeline_parallel_split: Literal["layers", "traced"] = "layers"
    """How the model is cut: by its list of layers, or traced as one module by torch.distributed.pipelining.pipeline.
    Our own key."""
    module_fqns_per_model_part: list[list[NonEmpty]] | None = None
    """The modules of each virtual stage, in order, instead of an automatic split."""
    pipeline_parallel_first_stage_less_layers: NonNegativeInt = 1
    """Weight of the embedding in the automatic split, in layers."""
    pipeline_parallel_last_stage_less_layers: NonNegativeInt = 1
    """Weight of the final norm and the head in the automatic split, in layers."""
    pipeline_parallel_layers_per_stage: PositiveInt | None = None
    """Layers (weights included) a virtual stage; unset, one stage a rank for 1F1B and GPipe and two for the others."""
    pipeline_parallel_schedule: Schedule = "1F1B"
    """Order of forwards and backwards (torch.distributed.pipelining.schedules); spelled exactly so."""
    pipeline_parallel_schedule_csv: str = ""
    """CSV file of a schedule to use instead of `pipeline_parallel_schedule`; empty: none."""
    pipeline_parallel_microbatch_size: PositiveInt = 1
    """Rows of one microbatch."""
    pipeline_parallel_expert_parallel_overlap: bool = True
    """No effect: there are no experts."""
    context_parallel_degree: Degree = 1
    """Ranks over which each sequence is cut."""
    context_parallel_load_balancer: Annotated[Literal["headtail"] | None, WordNone, Rule("'headtail' or 'none'")] = (
        "headtail"
    )
    """headtail: each rank takes one part from the beginning and one from the end, equal work under a causal mask. none:
    in order."""
    context_parallel_rotate_method: Literal["allgather", "alltoall", "ulysses"] = "allgather"
    """How keys and values meet the queries: gathered; passed around a ring ("alltoall", the old name); or ulysses,
    ours: heads are exchanged for sequence (Jacobs et al., 2023, arXiv:2309.14509)."""
    expert_parallel_degree: Annotated[int, Field(ge=1)] = 1
    """Not supported: there is no mixture of experts."""
    expert_tensor_parallel_degree: Annotated[int, Field(ge=1)] = 1
    """Not supported."""
    expert_parallel_comm_backend: Literal["standard", "deepep"] = "standard"
    """Not supported."""
