"""The registry of models: what generic code knows about a model, as data, with no torch imported.

A model is one folder that declares a `ModelSpec`: its arguments and flavors, the FQNs that tensor parallelism shards
and how, the order of its modules for pipeline stages, and how each kind of weight is drawn. The nn.Module itself is
named by a dotted path and imported only when built, so that checking a configuration costs no torch import.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from torch import nn

TPStyle = Literal[
    "vocab_embedding",  # ids in, rows sharded over tp, output sharded along the sequence
    "sequence",  # a norm on sequence-sharded activations, weight replicated
    "gather_sequence",  # the module's input is gathered along the sequence
    "colwise",  # weight sharded on dim 0 (output features)
    "kv_heads",  # colwise over KV heads, or replicated and sliced when tp does not divide them
    "rowwise",  # weight sharded on dim 1 (input features), output summed and sharded along the sequence
    "vocab_head",  # colwise over the vocabulary, logits stay sharded for the loss
]


class ModelArgs(BaseModel):
    """Arguments of a model; each model extends it. Overridden key by key by `[model.args]`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    vocab_size: Annotated[int, Field(ge=1)] | None = None
    """Rows of the embedding; None takes the tokenizer's size."""


@dataclass(frozen=True)
class Stages:
    """Order of the modules: `first` opens the model, `blocks` names the ModuleDict of repeated layers, `last` closes
    it.
    """

    first: tuple[str, ...]
    blocks: str
    last: tuple[str, ...]


@dataclass(frozen=True)
class InitRule:
    """How one parameter is drawn: a normal of that std truncated at three sigma, or a constant."""

    kind: Literal["normal", "ones", "zeros"]
    std: float = 0.0


@dataclass(frozen=True)
class ModelSpec:
    """One registered model.

    Attributes:
        name: what `model.name` says.
        args: the pydantic class of its arguments.
        flavors: named sizes.
        module: `package.module:Class` of the nn.Module, built as `Class(args)`.
        tp_plan: FQN pattern (`*` is one name) to the tensor-parallel style of that module.
        stages: the order of its modules.
        init: (args, canonical FQN) to the rule of that parameter.
        tied: args to pairs (canonical FQN, second FQN) of one shared parameter.
        parameter_count: args to the parameters of the whole model, a tied one counted once.
        flops_per_token: (args, seq_len) to the FLOPs of forward and backward of one token, recomputation not counted.
        check: (args, tp, cp, seq_len) to messages about what cannot be cut that way.
        n_layers: args to the number of blocks.
    """

    name: str
    args: type[ModelArgs]
    flavors: Mapping[str, ModelArgs]
    module: str
    tp_plan: Mapping[str, TPStyle]
    stages: Stages
    init: Callable[[Any, str], InitRule]
    n_layers: Callable[[Any], int]
    parameter_count: Callable[[Any], int]
    flops_per_token: Callable[[Any, int], float]
    tied: Callable[[Any], tuple[tuple[str, str], ...]] = field(default=lambda args: ())
    check: Callable[..., list[str]] = field(default=lambda args, **degrees: [])

    def build(self, args: ModelArgs) -> nn.Module:
        """The single-device module, built on torch's current default device (`with torch.device("meta")` for no
        memory).
        """
        path, _, name = self.module.partition(":")
        module: nn.Module = getattr(importlib.import_module(path), name)(args)
        return module


_specs: dict[str, ModelSpec] = {}


def register(spec: ModelSpec) -> ModelSpec:
    """Adds a model. Raises ValueError where the name is taken by another one."""
    if _specs.setdefault(spec.name, spec) is not spec:
        raise ValueError(f"a model named {spec.name!r} is registered already")
    return spec


def names() -> list[str]:
    """Registered names, after importing each model folder of this package once."""
    import titan.models

    for found in pkgutil.iter_modules(titan.models.__path__):
        if found.ispkg and found.name != "layers":
            importlib.import_module(f"titan.models.{found.name}")
    return sorted(_specs)


def get(name: str) -> ModelSpec:
    """Raises KeyError with the known names where there is no such model."""
    known = names()
    if name not in _specs:
        raise KeyError(f"no model {name!r}; registered: {', '.join(known)}")
    return _specs[name]
