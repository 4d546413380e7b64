"""What `titan plan` is asked: a run, resolved by the rules that `check` and `train` use, and the devices it goes on.

Some things that `train` refuses for lack of support are predicted all the same: float8 products and async tensor
parallelism become notes. A tokenizer that is not on this machine is no reason to refuse a plan either: the model's own
vocabulary counts.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from titan.config import Config, ConfigError, Resolved, load, resolve, world_size_wanted
from titan.config.schema_model import Quantize
from titan.plan.cost_terms import Extras
from titan.plan.devices import Device

_FLOAT8 = ("float8", "quantize.linear.float8")
_PREDICTED = {
    "model.converters": "model.converters=[]",
    "parallelism.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel=false",
}
"""Refused by `train`, predicted here: the override that leaves it off."""


@dataclass(frozen=True)
class Target:
    """Devices to run on.

    Attributes:
        device: the kind.
        per_node: of them in a node.
        limit: bytes that a process can use; None where no limit is known.
    """

    device: Device
    per_node: int
    limit: int | None

    @property
    def type(self) -> str:
        """As torch calls it, for the rules of the configuration."""
        return "cpu" if self.device.name == "cpu" else "cuda"


@dataclass(frozen=True)
class Request:
    """A run to plan, and sentences about how it was read."""

    resolved: Resolved
    extras: Extras
    notes: tuple[str, ...]


def read(path: str, overrides: Sequence[str], world_size: int | None, target: Target) -> Request:
    """The run of a file under overrides; `world_size` None is what the degrees ask for, at least a node.

    Raises ConfigError as `check` does.
    """
    config, extras, notes = _load(path, overrides)
    config, found = without_missing_tokenizer(config)
    notes += found
    if config.optimizer.early_step_in_backward:
        notes.append("the gradients that optimizer.early_step_in_backward frees are counted: the peak can be lower")
    size = world_size or world_size_wanted(config, target.type, 1 if target.type == "cpu" else target.per_node)
    return Request(resolve(config, size, target.type), extras, tuple(notes))


def _load(path: str, overrides: Sequence[str]) -> tuple[Config, Extras, list[str]]:
    try:
        return load(path, overrides), Extras(), []
    except ConfigError as error:
        asked = {
            problem.key: _value(problem.value)
            for problem in error.problems
            if problem.key in _PREDICTED and _predictable(problem.key, _value(problem.value))
        }
        if not asked:
            raise
    config = load(path, [*overrides, *(f"--{_PREDICTED[key]}" for key in asked)])
    extras, notes, float8 = Extras(), [], config.quantize.linear.float8
    if "model.converters" in asked:
        extras = replace(
            extras,
            float8=True,
            float8_head="output" not in float8.filter_fqns,
            float8_gather=float8.enable_fsdp_float8_all_gather,
        )
        notes.append("float8 products are predicted, and `train` does not run them (model.converters)")
    if "parallelism.enable_async_tensor_parallel" in asked:
        extras = replace(extras, async_tp=True)
        notes.append("async tensor parallelism is predicted, and `train` does not run it")
    return config.model_copy(update={"quantize": Quantize()}), extras, notes


def _value(text: str | None) -> Any:
    return tomllib.loads(f"value = {text}")["value"] if text is not None else None


def _predictable(key: str, value: Any) -> bool:
    return key != "model.converters" or (isinstance(value, list) and all(name in _FLOAT8 for name in value))


def without_missing_tokenizer(config: Config) -> tuple[Config, list[str]]:
    """The configuration with the shipped tokenizer where its own is not on this machine, and a note that says so."""
    path = config.model.hf_assets_path
    if path is None or Path(path).exists():
        return config, []
    model = config.model.model_copy(update={"hf_assets_path": None})
    note = f"the tokenizer {path} is not here: planned with the vocabulary of the model's arguments"
    return config.model_copy(update={"model": model}).with_origins(config.origins), [note]


def changed(config: Config, changes: dict[str, Any]) -> Config:
    """A copy with dotted keys (`section.key`) set to other values, which are taken as valid."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    update = {name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
    return config.model_copy(update=update).with_origins(config.origins)
