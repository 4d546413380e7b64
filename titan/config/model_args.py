"""The arguments of the model: a flavor of the registry, overridden key by key by `[model.args]`, its vocabulary filled
in.

Unknown models, flavors and arguments are answered with the closest name. The registry and the tokenizer are asked
without torch.
"""

from __future__ import annotations

import re
from typing import Any

from titan.config.custom import import_module
from titan.config.files import merge
from titan.config.problems import Problem, closest
from titan.config.schema_model import Model
from titan.config.schema_run import Experimental
from titan.config.toml_text import value_text
from titan.config.validate import build, known_part
from titan.config.wording import takes_none
from titan.models import registry
from titan.models.registry import ModelArgs, ModelSpec


def custom_import(experimental: Experimental) -> list[Problem]:
    """Imports the user's module, which may register models."""
    name = experimental.custom_import
    return import_module("experimental.custom_import", name)[1] if name else []


def resolve_args(model: Model) -> tuple[ModelSpec | None, ModelArgs | None, list[Problem]]:
    """The model's declaration and its arguments, or what is wrong with name, flavor or arguments."""
    names = registry.names()
    if model.name not in names:
        return None, None, [Problem("model.name", _choice("model", model.name, names), value_text(model.name))]
    spec = registry.get(model.name)
    if model.flavor not in spec.flavors:
        text = _choice(f"flavor of {model.name}", model.flavor, list(spec.flavors))
        return spec, None, [Problem("model.flavor", text, value_text(model.flavor))]
    given, problems = known_part(spec.args, model.args, "model.args.", {})
    values: dict[str, Any] = spec.flavors[model.flavor].model_dump()
    # TOML has no null, and some arguments can be unset (n_kv_heads, rope_scaling): the word "none" does it.
    unset = {key for key, value in given.items() if value == "none" and takes_none(spec.args.model_fields[key])}
    merge(values, {key: None if key in unset else value for key, value in given.items()})
    args, wrong = build(spec.args, values, "model.args.", {})
    problems += wrong
    return spec, None if problems else args, problems


def tokenizer_size(model: Model) -> tuple[int | None, list[Problem]]:
    """Largest id of the tokenizer + 1; with fewer than two there is nothing to predict."""
    from titan.data.tokenizer import vocab_size  # here, since it may need the library of tokenizers

    value = None if model.hf_assets_path is None else value_text(model.hf_assets_path)
    try:
        if (size := vocab_size(model)) > 1:
            return size, []
        text = "its tokenizer has one id, so that every next token is known: choose the tokenizer of the model."
        return None, [Problem("model.hf_assets_path", text, value)]
    except (OSError, ValueError) as error:
        # Data errors name key and folder themselves, for where there is no Problem around them.
        text = re.sub(r'^model\.hf_assets_path = "[^"]*": ', "", str(error))
        return None, [Problem("model.hf_assets_path", text, value)]


def _choice(kind: str, name: str, choices: list[str]) -> str:
    near = closest(name, choices)
    hint = f" Did you mean {value_text(near)}?" if near else ""
    return f"no such {kind}; there are {', '.join(choices)}.{hint}"
