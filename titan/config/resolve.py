"""From a configuration to a run: degrees, batch and model arguments as numbers, or every problem at once.

`titan check`, `titan plan` and each start of a run call this, so that they agree. It knows the world size and the
device, and asks the model registry and the tokenizer; it never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from titan.config import idle, rules, rules_checkpointing, rules_metrics, unsupported
from titan.config.batching import resolve_batch
from titan.config.degrees import as_written, resolve_degrees
from titan.config.layout import Batch, Degrees
from titan.config.model_args import custom_import, resolve_args, tokenizer_size
from titan.config.problems import ConfigError, Problem, placed
from titan.config.rules_compile import memory_budget
from titan.config.rules_pipeline import pipeline
from titan.config.schema import Config
from titan.models.registry import ModelArgs, ModelSpec


@dataclass(frozen=True)
class Resolved:
    """A run that can start.

    Attributes:
        config: as loaded.
        degrees: of the mesh; their product is the world.
        batch: of one optimizer step.
        spec: the model's declaration.
        model_args: flavor and overrides, `vocab_size` filled in.
        warnings: sentences to print once.
    """

    config: Config
    degrees: Degrees
    batch: Batch
    spec: ModelSpec
    model_args: ModelArgs
    warnings: tuple[str, ...]


def resolve(config: Config, world_size: int, device_type: str) -> Resolved:
    """Raises ConfigError with all problems.

    Args:
        config: as loaded.
        world_size: number of processes.
        device_type: "cpu", "cuda", ...: what has no effect there is a warning.
    """
    training, parallelism = config.training, config.parallelism
    problems = unsupported.problems(config.model_dump(), {})
    problems += custom_import(config.experimental)
    degrees, found = resolve_degrees(parallelism, world_size)
    problems += found
    batch: Batch | None = None
    warnings: list[str] = []
    if degrees is not None:
        batch, found, warnings = resolve_batch(training, parallelism, degrees.batch)
        problems += found
        problems += rules.reshard_group(parallelism, degrees)
    cuts = degrees or as_written(parallelism)  # what tp, cp and pp cut does not depend on the world
    problems += rules.sequence(training, parallelism, cuts)
    problems += rules_metrics.sinks(config.metrics) + rules_metrics.profiling(config.profiling)
    problems += rules.seed_checkpoint(config.checkpoint) + rules.dry_run(config.comm, cuts)
    problems += memory_budget(config.activation_checkpoint, config.compile)
    problems += rules_checkpointing.by_operator(config.activation_checkpoint, parallelism, config.compile)
    problems += rules.rewind(training, config.checkpoint)
    problems += rules.early_step(config.optimizer, training, cuts, batch)
    spec, args, found = resolve_args(config.model)
    problems += found
    if spec is not None and args is not None:
        args, found = _with_vocabulary(args, config)
        problems += found
        found = rules.model_cuts(spec, args, training, cuts)
        problems += found or rules.ulysses(args, parallelism, cuts)
        problems += pipeline(parallelism, cuts, spec.stages, spec.n_layers(args), batch)
    if problems or degrees is None or batch is None or spec is None or args is None:
        raise ConfigError([placed(problem, config.origins) for problem in problems])
    warnings += rules.schedule_warnings(config.lr_scheduler, training)
    if training.enable_cpu_offload and device_type == "cpu":
        warnings.append(
            "training.enable_cpu_offload = true means nothing on the CPU: the parameters are there already."
        )
    warnings += rules_checkpointing.whole_blocks(config.activation_checkpoint, parallelism, config.compile)
    warnings += rules_metrics.memory_snapshot_notice(config.profiling, device_type)
    if idle_keys := idle.warning(config):
        warnings.append(idle_keys)
    return Resolved(config, degrees, batch, spec, args, tuple(warnings))


def _with_vocabulary(args: ModelArgs, config: Config) -> tuple[ModelArgs, list[Problem]]:
    size, problems = tokenizer_size(config.model)
    if size is None:
        return args, problems
    if args.vocab_size is None:
        return args.model_copy(update={"vocab_size": size}), []
    return args, rules.vocabulary(args, size)
