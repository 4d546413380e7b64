"""Sections about the model and its optimization: model, optimizer, learning rate, activation checkpointing, compile,
quantization.

Names are those of torchtitan 0.2.2; `[model.args]` is ours, so that a new size needs no Python.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from titan.config.section import EveryNth, Fraction, NonEmpty, NonNegativeInt, PositiveInt, Section


class Model(Section):
    """Which model is trained and with which tokenizer."""

    name: NonEmpty = "llama3"
    """A registered model."""
    flavor: NonEmpty = "debugmodel"
    """A named size of the model."""
    args: dict[str, Any] = Field(default_factory=dict)
    """`[model.args]`: arguments of the model that override the flavor's (dim, n_layers, ...). Our own table."""
    hf_assets_path: NonEmpty | None = None
    """Folder of a Hugging Face tokenizer (tokenizer.json). Unset, our default (torchtitan's is a test folder): the
    tokenizer that this package ships."""
    tokenizer_path: NonEmpty | None = None
    """Older name of `hf_assets_path`, and moved there on reading."""
    converters: list[str] = Field(default_factory=list)
    """Not supported: model converters (float8, MX)."""
    print_after_conversion: bool = False
    """Not supported, as there are no converters."""

    @model_validator(mode="before")
    @classmethod
    def _move_old_name(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("tokenizer_path"), str):
            path = values["tokenizer_path"]
            if values.get("hf_assets_path") in (None, path):
                return {**{k: v for k, v in values.items() if k != "tokenizer_path"}, "hf_assets_path": path}
        return values


class Optimizer(Section):
    """AdamW (Loshchilov & Hutter, 2019); weight decay leaves norms and biases alone, unlike torchtitan's."""

    name: Literal["AdamW", "Adam"] = "AdamW"
    """AdamW: decoupled weight decay. Adam: weight decay added to the gradient."""
    lr: Annotated[float, Field(gt=0.0)] = 8e-4
    """Peak learning rate."""
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95
    """Decay of the second moment."""
    eps: Annotated[float, Field(gt=0.0)] = 1e-8
    """Added to the denominator."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.1
    """Weight decay of parameters with two or more dimensions; norms and biases have none."""
    implementation: Literal["for-loop", "foreach", "fused"] = "fused"
    """Implementation in torch."""
    early_step_in_backward: bool = False
    """Update each parameter within the backward and free its gradient: saves the memory of the gradients. Needs
    `training.max_norm = inf`, one backward a step (no accumulation, no pipeline), and `training.non_finite` other than
    "skip"."""


class LRScheduler(Section):
    """Warm-up, stable phase, decay: a factor on the learning rate a step."""

    warmup_steps: NonNegativeInt = 200
    """Steps of linear warm-up; longer than the run, it is cut to the run's length with a warning."""
    total_steps: PositiveInt | None = None
    """Length of the schedule in steps; unset, `training.steps`."""
    decay_ratio: Fraction | None = None
    """Last part of the schedule, 0 to 1, in which the rate decays; unset, the decay begins right after the warm-up."""
    decay_type: Literal["linear", "sqrt", "cosine"] = "linear"
    """Curve of the decay; sqrt is 1 - sqrt (Hägele et al., 2024, arXiv:2405.18392)."""
    min_lr_factor: Fraction = 0.0
    """Where the decay ends, as a part of `optimizer.lr`: the rate of the step after the last one."""


class ActivationCheckpoint(Section):
    """Recomputing activations in the backward pass to save memory."""

    mode: Literal["selective", "full", "memory_budget", "none"] = "selective"
    """none; full: each block; selective: see `selective_ac_option`; memory_budget: what the compiler chooses within
    `memory_budget`."""
    selective_ac_option: EveryNth = "2"
    """With selective: "op" keeps the results of matrix products and attention, "n" recomputes every n-th block."""
    per_op_sac_force_recompute_mm_shapes_by_fqns: list[str] = Field(default_factory=lambda: ["moe.router.gate"])
    """With selective "op": linear layers by a part of their name; products of their shapes are always recomputed."""
    early_stop: bool = False
    """Stop a recomputation at the last tensor that is needed."""
    memory_budget: Fraction = 0.5
    """Share of the activations, by bytes, that the compiler's partitioner keeps: 0 recomputes all that it can, 1 is its
    usual choice. With mode memory_budget; needs `compile.enable`."""
    visualize_memory_budget_pareto: bool = False
    """Draw what each budget would keep and cost, as memory_budget_pareto/*.svg in the run folder; needs matplotlib."""
    preserve_rng_state: bool = True
    """Restore the random state for the recomputation."""
    determinism_check: Literal["default", "none"] = "default"
    """torch.utils.checkpoint's check that recomputed tensors look like the first ones."""
    debug: bool = False
    """torch.utils.checkpoint's debug mode: traces of operators on a mismatch."""


class Compile(Section):
    """torch.compile, a block at a time."""

    enable: bool = False
    """Compile."""
    components: list[Literal["model", "loss"]] = Field(default=["model", "loss"])
    """What is compiled."""
    backend: NonEmpty = "inductor"
    """torch.compile backend."""


class Float8Linear(Section):
    """Not supported: float8 linear layers."""

    enable_fsdp_float8_all_gather: bool = False
    """Not supported."""
    precompute_float8_dynamic_scale_for_fsdp: bool = False
    """Not supported."""
    recipe_name: Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"] | None = None
    """Not supported."""
    filter_fqns: list[str] = Field(default_factory=list)
    """Not supported."""
    emulate: bool = False
    """Not supported."""


class MXLinear(Section):
    """Not supported: MX linear layers."""

    mxfp8_dim1_cast_kernel_choice: Literal["triton", "cuda", "torch"] = "triton"
    """Not supported."""
    recipe_name: str = "mxfp8_cublas"
    """Not supported."""
    filter_fqns: list[str] = Field(default_factory=lambda: ["output"])
    """Not supported."""


class Float8GroupedMM(Section):
    """Not supported: float8 grouped products."""

    fqns: list[str] | str = Field(default_factory=list)
    """Not supported."""


class MXGroupedMM(Section):
    """Not supported: MX grouped products."""

    recipe_name: Literal["mxfp8"] = "mxfp8"
    """Not supported."""
    fqns: list[str] | str = Field(default_factory=list)
    """Not supported."""


class QuantizeLinear(Section):
    """Not supported: quantized linear layers."""

    float8: Float8Linear = Float8Linear()
    mx: MXLinear = MXLinear()


class QuantizeGroupedMM(Section):
    """Not supported: quantized grouped products."""

    float8: Float8GroupedMM = Float8GroupedMM()
    mx: MXGroupedMM = MXGroupedMM()


class Quantize(Section):
    """Not supported: quantized training. `training.mixed_precision_param` offers bfloat16."""

    linear: QuantizeLinear = QuantizeLinear()
    grouped_mm: QuantizeGroupedMM = QuantizeGroupedMM()
