"""Rules across fields, but for those of pipelines: small pure functions from the sections they read to problems.

Each states its rule once, with the numbers at hand and a way out. `resolve.py` collects them.
"""

from __future__ import annotations

import math
from typing import Any

from titan.config.layout import Batch, Degrees
from titan.config.problems import Problem
from titan.config.schema_checkpoint import Checkpoint
from titan.config.schema_model import LRScheduler, Optimizer
from titan.config.schema_parallelism import Parallelism
from titan.config.schema_run import Comm
from titan.config.schema_training import Training
from titan.models.registry import ModelSpec


def sequence(training: Training, parallelism: Parallelism, degrees: Degrees) -> list[Problem]:
    """Each rank holds equally many tokens: tp and cp cut the sequence, and head-tail balancing cuts it twice as
    fine."""
    balanced = degrees.cp > 1 and parallelism.context_parallel_load_balancer == "headtail"
    multiple = degrees.tp * degrees.cp * (2 if balanced else 1)
    length = training.seq_len
    if length % multiple == 0:
        return []
    factors = [("tensor_parallel_degree", degrees.tp), ("context_parallel_degree", degrees.cp)]
    factors += [("2 (head-tail load balancing)", 2)] if balanced else []
    used = [(name, size) for name, size in factors if size > 1]
    names = " x ".join(name for name, _ in used)
    sizes = "" if len(used) == 1 else f"{' x '.join(str(size) for _, size in used)} = "
    nearest = max(multiple, round(length / multiple) * multiple)
    text = f"must divide by {names} ({sizes}{multiple}); {nearest} is the nearest."
    return [Problem("training.seq_len", text, str(length))]


def ulysses(args: Any, parallelism: Parallelism, degrees: Degrees) -> list[Problem]:
    """Ulysses hands whole heads around: those that tensor parallelism leaves to a rank must divide by cp."""
    heads = getattr(args, "n_heads", None)
    if degrees.cp == 1 or parallelism.context_parallel_rotate_method != "ulysses" or not isinstance(heads, int):
        return []
    if heads % degrees.tp or (heads // degrees.tp) % degrees.cp == 0:
        return []  # heads that do not divide by tp are the model's own rule
    text = (
        f"needs heads / tensor_parallel_degree = {heads} / {degrees.tp} = {heads // degrees.tp} to divide by "
        f"context_parallel_degree = {degrees.cp}: use allgather or alltoall, or other degrees."
    )
    return [Problem("parallelism.context_parallel_rotate_method", text, '"ulysses"')]


def reshard_group(parallelism: Parallelism, degrees: Degrees) -> list[Problem]:
    """An integer fsdp_reshard_after_forward is the size of a group within the ranks that shard."""
    size = parallelism.fsdp_reshard_after_forward
    if isinstance(size, str) or degrees.fsdp % size == 0:
        return []
    text = (
        "as a group size it must divide the ranks that shard parameters, data_parallel_shard_degree "
        f"{degrees.dp_shard} x "
        f"context_parallel_degree {degrees.cp} = {degrees.fsdp}."
    )
    return [Problem("parallelism.fsdp_reshard_after_forward", text, str(size))]


def model_cuts(spec: ModelSpec, args: Any, training: Training, degrees: Degrees) -> list[Problem]:
    """What the model itself says about its arguments and the degrees."""
    messages = spec.check(args, tp=degrees.tp, cp=degrees.cp, seq_len=training.seq_len)
    return [Problem("model", message) for message in messages]


def vocabulary(args: Any, tokenizer_size: int) -> list[Problem]:
    """An id beyond the embedding is a row of zeros under tensor parallelism, with no error: so it is refused here."""
    if args.vocab_size >= tokenizer_size:
        return []
    text = (
        f"the tokenizer has {tokenizer_size} ids, more than the model's vocabulary: set it to at least "
        f"{tokenizer_size}, or "
        "choose the tokenizer that belongs to the model (model.hf_assets_path)."
    )
    return [Problem("model.args.vocab_size", text, str(args.vocab_size))]


def early_step(optimizer: Optimizer, training: Training, degrees: Degrees, batch: Batch | None) -> list[Problem]:
    """An update within the backward: before the norm is known, and when one backward has given the whole gradient."""
    if not optimizer.early_step_in_backward:
        return []
    found = []
    if not math.isinf(training.max_norm):
        found.append(f"clipping by training.max_norm = {training.max_norm} comes too late: set it to inf.")
    if degrees.pp > 1:
        found.append("the microbatches of a pipeline add up to a gradient: set pipeline_parallel_degree = 1.")
    elif batch is not None and batch.accumulation > 1:
        found.append(
            f"{batch.accumulation} accumulation steps add up to a gradient: set training.local_batch_size to "
            f"{batch.rows * batch.accumulation} or -1."
        )
    if training.non_finite == "skip":
        found.append('a step cannot be skipped when it was taken: set training.non_finite to "fail" or "rewind".')
    return [Problem("optimizer.early_step_in_backward", text, "true") for text in found]


def rewind(training: Training, checkpoint: Checkpoint) -> list[Problem]:
    """A rewind needs something to go back to."""
    if training.non_finite != "rewind" or (checkpoint.enable and not checkpoint.load_only):
        return []
    text = 'goes back to a checkpoint of this run: set checkpoint.enable = true, or use "skip" or "fail".'
    return [Problem("training.non_finite", text, '"rewind"')]


def seed_checkpoint(section: Checkpoint) -> list[Problem]:
    """Its purpose is a file, so writing must be on."""
    if not section.create_seed_checkpoint or (section.enable and not section.load_only):
        return []
    text = "needs checkpoint.enable = true and checkpoint.load_only = false: it saves the initial weights and ends."
    return [Problem("checkpoint.create_seed_checkpoint", text, "true")]


def dry_run(section: Comm, degrees: Degrees) -> list[Problem]:
    """Stages of a pipeline tell each other the shapes of what they send (torch 2.13), which needs both ends."""
    if section.mode != "fake_backend" or degrees.pp == 1:
        return []
    text = (
        f"a dry run has no pipeline, and pipeline_parallel_degree is {degrees.pp}: stages exchange shapes with real "
        "peers. Set it to 1, or use `titan plan`, which predicts memory and time of every stage."
    )
    return [Problem("comm.mode", text, '"fake_backend"')]


def schedule_warnings(section: LRScheduler, training: Training) -> list[str]:
    """Warm-up and decay that do not fit the run: both are cut, as in torchtitan, and said once."""
    total = section.total_steps or training.steps
    found = []
    if section.warmup_steps > total:
        found.append(
            f"lr_scheduler.warmup_steps = {section.warmup_steps} is more than the {total} steps of the schedule: "
            "warm-up is cut "
            f"to {total} steps and nothing decays."
        )
    elif section.decay_ratio is not None and section.warmup_steps + round(total * section.decay_ratio) > total:
        found.append(
            f"lr_scheduler.decay_ratio = {section.decay_ratio} ({round(total * section.decay_ratio)} steps) and "
            "warmup_steps = "
            f"{section.warmup_steps} are more than the {total} steps of the schedule: the decay is cut to "
            f"{total - section.warmup_steps} "
            "steps."
        )
    if total < training.steps:
        found.append(
            f"lr_scheduler.total_steps = {total} is less than training.steps = {training.steps}: the learning rate "
            "stays at its "
            "final value after that."
        )
    return found
