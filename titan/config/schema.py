"""The whole configuration: one frozen model, one attribute a TOML table. The sections are in the `schema_*` files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import PrivateAttr

from titan.config.schema_checkpoint import Checkpoint
from titan.config.schema_model import ActivationCheckpoint, Compile, LRScheduler, Model, Optimizer, Quantize
from titan.config.schema_parallelism import Parallelism
from titan.config.schema_run import Comm, Debug, Experimental, FaultTolerance, Job, MemoryEstimation, Metrics, Profiling
from titan.config.schema_training import Training, Validation
from titan.config.section import Section

__all__ = [
    "ActivationCheckpoint",
    "Checkpoint",
    "Comm",
    "Compile",
    "Config",
    "Debug",
    "Experimental",
    "FaultTolerance",
    "Job",
    "LRScheduler",
    "MemoryEstimation",
    "Metrics",
    "Model",
    "Optimizer",
    "Parallelism",
    "Profiling",
    "Quantize",
    "Training",
    "Validation",
]


class Config(Section):
    """A run, declared. Made by `titan.config.load`, or directly in tests: `Config(training=Training(steps=3))`."""

    job: Job = Job()
    profiling: Profiling = Profiling()
    metrics: Metrics = Metrics()
    model: Model = Model()
    optimizer: Optimizer = Optimizer()
    lr_scheduler: LRScheduler = LRScheduler()
    training: Training = Training()
    parallelism: Parallelism = Parallelism()
    checkpoint: Checkpoint = Checkpoint()
    activation_checkpoint: ActivationCheckpoint = ActivationCheckpoint()
    compile: Compile = Compile()
    quantize: Quantize = Quantize()
    comm: Comm = Comm()
    memory_estimation: MemoryEstimation = MemoryEstimation()
    fault_tolerance: FaultTolerance = FaultTolerance()
    experimental: Experimental = Experimental()
    validation: Validation = Validation()
    debug: Debug = Debug()
    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @property
    def origins(self) -> Mapping[str, str]:
        """Dotted key to where it was set, `file:line` or "command line"; a key that is not in it is at its default."""
        return self._origins

    def with_origins(self, origins: Mapping[str, str]) -> Self:
        """The same configuration, told where its values come from."""
        copy = self.model_copy()
        copy._origins = dict(origins)
        return copy

    def __eq__(self, other: object) -> bool:
        """By values alone: the same settings from another file are the same configuration."""
        return type(self) is type(other) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment] # lists and tables within
