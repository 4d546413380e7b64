"""Composes the parallelisms over a model, in the one order that is right, a log line each.

Pipeline split, tensor, context, activation checkpointing, compile, then FSDP/HSDP/DDP; then memory, then initial
weights:
  - tensor parallelism first, since FSDP shards what it leaves, and checkpointing would hide the modules that its
    plan names;
  - checkpointing before compile, which looks into it where operators are chosen and stays within it for whole
    blocks;
  - `fully_shard` last, so that its hooks run around the compiled region and gather what the inner layers compute
    with.

A model is built on the meta device and cut before it gets memory: no rank ever holds a full tensor that it does not
own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from titan.config.layout import Batch
from titan.config.schema import ActivationCheckpoint, Compile, Parallelism, Training
from titan.models.registry import ModelArgs, ModelSpec
from titan.parallelisms.activation_checkpoint import apply_activation_checkpoint, set_memory_budget
from titan.parallelisms.compile import apply_compile, check_compiler
from titan.parallelisms.context import apply_context_parallel, local_positions
from titan.parallelisms.data_parallel import (
    DataParallel,
    apply_data_parallel,
    resolve_reshard,
    skips_sync_in_accumulation,
)
from titan.parallelisms.initialize import initialize
from titan.parallelisms.loss import TokenLoss
from titan.parallelisms.mesh import Mesh
from titan.parallelisms.parameters import NamedParameter, named_parameters
from titan.parallelisms.pipeline import StageShapes, TiedGradients, build_schedule, keep_modules
from titan.parallelisms.precision import WorkingCopies
from titan.parallelisms.stages import (
    count_stages,
    csv_stage_ranks,
    split_layers,
    splits_backward,
    stage_modules,
    stage_ranks,
)
from titan.parallelisms.tensor import apply_tensor_parallel
from titan.parallelisms.traced import trace_stages

Log = Callable[[str], None]


@dataclass(frozen=True)
class StagePlan:
    """The pipeline as this rank sees it: modules of every stage, the rank that holds each."""

    modules: tuple[tuple[str, ...], ...]
    ranks: tuple[int, ...]

    def of(self, rank: int) -> list[int]:
        return [stage for stage, holder in enumerate(self.ranks) if holder == rank]


@dataclass
class Assembly:
    """A model at one layout, as the training step drives it.

    Attributes:
        parts: the model parts of this rank: one, or its pipeline stages.
        parameters: each parameter of the parts under its canonical name; masters where there are working copies.
        loss: the token loss; its `valid_tokens` is set each step.
        positions: (seq / cp,) int64, the global positions of this rank's columns.
        schedule: torch's pipeline schedule, or None.
        holds_first, holds_last: whether this rank takes the ids, and whether it computes the loss.
        tied: adds tied gradients across stages, or None.
        copies: working copies to refresh after each optimizer step, or None.
        sync_each: whether every accumulation step reduces gradients.
    """

    parts: list[nn.Module]
    parameters: list[NamedParameter]
    loss: TokenLoss
    positions: Tensor
    schedule: Any
    holds_first: bool
    holds_last: bool
    tied: TiedGradients | None
    copies: WorkingCopies | None
    sync_each: bool


def plan_stages(spec: ModelSpec, args: ModelArgs, parallelism: Parallelism, pp: int) -> StagePlan:
    """Which modules each stage holds and where it stands. Raises ValueError where the split is impossible."""
    csv_file = parallelism.pipeline_parallel_schedule_csv
    n_layers = spec.n_layers(args)
    less = dict(
        first_less=parallelism.pipeline_parallel_first_stage_less_layers,
        last_less=parallelism.pipeline_parallel_last_stage_less_layers,
    )
    schedule = parallelism.pipeline_parallel_schedule
    if csv_file:
        ranks = csv_stage_ranks(Path(csv_file))
    else:
        given = parallelism.module_fqns_per_model_part
        n_stages = (
            len(given)
            if given
            else count_stages(
                schedule, pp, n_layers, layers_per_stage=parallelism.pipeline_parallel_layers_per_stage, **less
            )
        )
        ranks = stage_ranks(schedule, pp, n_stages)
    modules: Sequence[Sequence[str]] = parallelism.module_fqns_per_model_part or stage_modules(
        spec.stages, split_layers(n_layers, len(ranks), **less)
    )
    return StagePlan(tuple(tuple(part) for part in modules), tuple(ranks))


def build(
    spec: ModelSpec,
    args: ModelArgs,
    *,
    batch: Batch,
    training: Training,
    parallelism: Parallelism,
    activation_checkpoint: ActivationCheckpoint,
    compile: Compile,
    mesh: Mesh | None,
    device: torch.device,
    seed: int,
    log: Log,
    folder: Path | None = None,
) -> Assembly:
    """Builds this rank's share of the model with its initial weights. A collective call; `mesh` is None for one
    process, `folder` is that of the run, where drawings go.
    """
    compiled = compile.enable and "model" in compile.components
    if compile.enable:
        check_compiler(compile.backend, device.type)
    pp = mesh.degrees.pp if mesh else 1
    stages = plan_stages(spec, args, parallelism, pp) if pp > 1 else None
    option = _data_parallel_option(training, parallelism, device, pp)
    trace = None
    if parallelism.pipeline_parallel_split == "traced":
        shape = batch.microbatch_size, training.seq_len
        trace = partial(trace_stages, shape=shape, device=device, dtype=option.param_dtype)
    parts = [part.to(_master(training)) for part in _cut(spec, args, stages, mesh, log, trace)]
    csv_file = Path(parallelism.pipeline_parallel_schedule_csv) if parallelism.pipeline_parallel_schedule_csv else None
    split_backward = pp > 1 and splits_backward(parallelism.pipeline_parallel_schedule, csv_file)
    _budget(activation_checkpoint, folder)
    for part in parts:
        blocks = part.get_submodule(spec.stages.blocks)
        assert isinstance(blocks, nn.ModuleDict)
        if mesh and mesh.degrees.tp > 1:
            _tensor(part, spec, args, mesh, parallelism)
        if mesh and mesh.cp:
            apply_context_parallel(
                part,
                group=mesh.cp.get_group(),
                method=parallelism.context_parallel_rotate_method,
                load_balancer=parallelism.context_parallel_load_balancer,
            )
        _checkpoint(blocks, activation_checkpoint)
        if compiled:
            apply_compile(blocks, backend=compile.backend, split_backward=split_backward)
        if mesh:
            apply_data_parallel(
                part,
                blocks=list(blocks.values()),
                groups=_end_groups(part, spec, args),
                mesh=mesh.fsdp,
                option=option,
            )
    _log_composition(log, mesh, parallelism, activation_checkpoint, compile, option)
    parameters = _materialise(parts, spec, args, torch.device("cpu") if option.cpu_offload else device)
    initialize(parameters, lambda fqn: spec.init(args, fqn), seed)
    log(f"initial weights: drawn by position from seed {seed}, each rank its own slice")
    copies = WorkingCopies(parts, option.param_dtype) if not mesh and option.param_dtype != _master(training) else None
    loss = _loss(args, mesh, parallelism)
    if compile.enable and "loss" in compile.components:
        loss.compile(compile.backend)
    schedule = None
    if mesh and stages:
        schedule = build_schedule(
            parts,
            stage_ids=stages.of(mesh.pp_rank),
            n_stages=len(stages.ranks),
            shapes=_shapes(args, batch, training.seq_len, mesh, parallelism, option.param_dtype),
            mesh=mesh.pp,
            device=device,
            schedule=parallelism.pipeline_parallel_schedule,
            csv_file=csv_file,
            microbatches=batch.microbatches,
            loss=loss,
        )
    tied = None
    if mesh and stages and spec.tied(args):
        canonical = [name for name, _second in spec.tied(args)]
        tied = TiedGradients(parameters, canonical, mesh.pp, (stages.ranks[0], stages.ranks[-1]))
    cp, cp_rank = (mesh.degrees.cp, mesh.cp_rank) if mesh else (1, 0)
    positions = local_positions(training.seq_len, cp, cp_rank, parallelism.context_parallel_load_balancer).to(device)
    return Assembly(
        parts=parts,
        parameters=parameters,
        loss=loss,
        positions=positions,
        schedule=schedule,
        holds_first=stages is None or mesh is None or stages.ranks[0] == mesh.pp_rank,
        holds_last=stages is None or mesh is None or stages.ranks[-1] == mesh.pp_rank,
        tied=tied,
        copies=copies,
        sync_each=mesh is not None and not skips_sync_in_accumulation(option, mesh.degrees.fsdp),
    )


def _cut(
    spec: ModelSpec,
    args: ModelArgs,
    stages: StagePlan | None,
    mesh: Mesh | None,
    log: Log,
    trace: Callable[..., list[nn.Module]] | None,
) -> list[nn.Module]:
    def whole() -> nn.Module:
        with torch.device("meta"):
            return spec.build(args)

    if stages is None or mesh is None:
        return [whole()]
    mine = stages.of(mesh.pp_rank)
    each = " | ".join(map(_summary, stages.modules))
    log(f"pipeline: {len(stages.ranks)} stages on {mesh.degrees.pp} ranks, of {each}{', traced' if trace else ''}")
    if trace:
        return trace(partial(spec.build, args), spec.stages, stages.modules, mine)
    return [keep_modules(whole(), spec.stages, stages.modules[stage]) for stage in mine]


def _summary(modules: Sequence[str]) -> str:
    return modules[0] if len(modules) == 1 else f"{modules[0]} .. {modules[-1]}"


def _master(training: Training) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, training.dtype)
    return dtype


def _data_parallel_option(training: Training, parallelism: Parallelism, device: torch.device, pp: int) -> DataParallel:
    return DataParallel(
        reshard_after_forward=resolve_reshard(parallelism.fsdp_reshard_after_forward, pipelined=pp > 1),
        param_dtype=getattr(torch, training.mixed_precision_param),
        reduce_dtype=getattr(torch, training.mixed_precision_reduce),
        cpu_offload=training.enable_cpu_offload and device.type != "cpu",
    )


def _tensor(part: nn.Module, spec: ModelSpec, args: Any, mesh: Mesh, parallelism: Parallelism) -> None:
    apply_tensor_parallel(
        part, mesh=mesh.tp, plan=spec.tp_plan, heads=args, loss_parallel=not parallelism.disable_loss_parallel
    )
    tie(part, spec, args)  # sharding gave each name a parameter of its own


def _checkpoint(blocks: nn.ModuleDict, section: ActivationCheckpoint) -> None:
    apply_activation_checkpoint(
        blocks,
        mode=section.mode,
        selective_option=section.selective_ac_option,
        recompute=section.per_op_sac_force_recompute_mm_shapes_by_fqns,
        preserve_rng_state=section.preserve_rng_state,
        early_stop=section.early_stop,
        determinism_check=section.determinism_check,
        debug=section.debug,
    )


def _budget(section: ActivationCheckpoint, folder: Path | None) -> None:
    chosen = section.mode == "memory_budget"
    drawn = folder / "memory_budget_pareto" if chosen and folder and section.visualize_memory_budget_pareto else None
    set_memory_budget(section.memory_budget if chosen else None, drawn)


def _end_groups(part: nn.Module, spec: ModelSpec, args: ModelArgs) -> list[list[nn.Module]]:
    """FSDP groups at the ends; a tied embedding and head on one part must be one group, the root's."""
    first = [module for name in spec.stages.first if (module := getattr(part, name)) is not None]
    last = [module for name in spec.stages.last if (module := getattr(part, name)) is not None]
    if first and last and spec.tied(args):
        return []
    return [group for group in (first, last) if group]


def tie(part: nn.Module, spec: ModelSpec, args: ModelArgs) -> None:
    """Makes both names of each tied parameter one again, where the part holds both."""
    for canonical, second in spec.tied(args):
        (module, name), (other, other_name) = (_owner(part, fqn) for fqn in (canonical, second))
        if module is not None and other is not None:
            setattr(other, other_name, getattr(module, name))


def _owner(part: nn.Module, fqn: str) -> tuple[nn.Module | None, str]:
    path, _, name = fqn.rpartition(".")
    module: Any = part
    for child in path.split("."):
        module = getattr(module, child, None)
    return module, name


def _materialise(
    parts: Sequence[nn.Module], spec: ModelSpec, args: ModelArgs, device: torch.device
) -> list[NamedParameter]:
    for part in parts:
        part.to_empty(device=device)
        tie(part, spec, args)  # each module got memory of its own
    return named_parameters(parts, {second: canonical for canonical, second in spec.tied(args)})


def _loss(args: ModelArgs, mesh: Mesh | None, parallelism: Parallelism) -> TokenLoss:
    if mesh is None or mesh.degrees.tp == 1 or parallelism.disable_loss_parallel:
        return TokenLoss()
    return TokenLoss((mesh.tp.get_group(), _columns(_vocab(args), mesh).start))


def _columns(vocab: int, mesh: Mesh) -> range:
    """Columns of the logits on this tp rank: those of torch.chunk, the last ranks have fewer."""
    width = -(-vocab // mesh.degrees.tp)
    return range(min(vocab, width * mesh.tp_rank), min(vocab, width * (mesh.tp_rank + 1)))


def _vocab(args: ModelArgs) -> int:
    if args.vocab_size is None:
        raise ValueError("vocab_size is None: resolve it from the tokenizer before building the model")
    return args.vocab_size


def _shapes(
    args: Any, batch: Batch, seq_len: int, mesh: Mesh, parallelism: Parallelism, dtype: torch.dtype
) -> StageShapes:
    degrees, rows, seq = mesh.degrees, batch.microbatch_size, seq_len // mesh.degrees.cp
    columns = _vocab(args)
    if degrees.tp > 1 and not parallelism.disable_loss_parallel:
        columns = len(_columns(columns, mesh))
    return StageShapes((rows, seq), (rows, seq // degrees.tp, args.dim), (rows, seq, columns), dtype)


def _log_composition(
    log: Log,
    mesh: Mesh | None,
    parallelism: Parallelism,
    activation_checkpoint: ActivationCheckpoint,
    compile: Compile,
    option: DataParallel,
) -> None:
    if mesh and mesh.degrees.tp > 1:
        loss = "gathered logits" if parallelism.disable_loss_parallel else "vocabulary-parallel loss"
        log(f"tensor parallel: {mesh.degrees.tp} ranks, with sequence parallelism and {loss}")
    if mesh and mesh.cp:
        balance = parallelism.context_parallel_load_balancer or "no"
        log(
            f"context parallel: {mesh.degrees.cp} ranks, {parallelism.context_parallel_rotate_method}, {balance} load "
            "balancing"
        )
    if activation_checkpoint.mode != "none":
        details = {
            "selective": activation_checkpoint.selective_ac_option,
            "memory_budget": f"{activation_checkpoint.memory_budget} of what the compiler would keep",
        }
        detail = f" ({details[activation_checkpoint.mode]})" if activation_checkpoint.mode in details else ""
        log(f"activation checkpointing: {activation_checkpoint.mode}{detail}")
    if compile.enable:
        log(f"compile: {', '.join(compile.components)} with {compile.backend}")
    if mesh:
        degrees = mesh.degrees
        kind = (
            "HSDP" if degrees.dp_replicate > 1 and degrees.fsdp > 1 else "DDP" if degrees.dp_replicate > 1 else "FSDP"
        )
        log(
            f"data parallel: {kind} over dp_replicate {degrees.dp_replicate} x fsdp {degrees.fsdp}, reshard "
            "after forward "
            f"{option.reshard_after_forward}, compute {option.param_dtype}, reduce {option.reduce_dtype}".replace(
                "torch.", ""
            )
        )
