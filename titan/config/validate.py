"""Turns nested tables into a Config, or into all that is wrong with them, in our words.

Unknown names are found first, by walking the tables along the schema, so that each can be answered with the closest
valid name, its right section, or its new place; pydantic then judges the values, and `wording.py` says the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from titan.config import unsupported
from titan.config.files import Source
from titan.config.old_names import new_place
from titan.config.problems import ConfigError, Problem, closest
from titan.config.schema import Config
from titan.config.toml_text import value_text
from titan.config.wording import leaves, remedy, rule_of


def validate(source: Source, schema: type[Config] = Config) -> Config:
    """Raises ConfigError with every problem of names, types, ranges and unsupported features."""
    known, problems = known_part(schema, source.values, "", source.origins)
    model = known.get("model")
    if isinstance(model, dict) and model.get("hf_assets_path") and model.get("tokenizer_path"):
        same = model["hf_assets_path"] == model["tokenizer_path"]
        if not same:
            text = "the older name of model.hf_assets_path, which says something else: delete this one."
            key = "model.tokenizer_path"
            problems.append(Problem(key, text, value_text(model["tokenizer_path"]), source.origins.get(key)))
    problems += [problem for key, value in known.items() for problem in _beyond(key, value, source.origins)]
    config, wrong = build(schema, known, "", source.origins)
    problems += [problem for problem in wrong if problem.key not in {found.key for found in problems}]
    named = {problem.key for problem in problems}
    problems += [found for found in unsupported.problems(known, source.origins) if found.key not in named]
    if problems or config is None:
        raise ConfigError(problems)
    return config.with_origins(source.origins)


def _beyond(key: str, value: Any, origins: Mapping[str, str]) -> list[Problem]:
    """Values that TOML itself rules out, though tomllib or a command line lets them pass, and text that no path, and
    so nothing that is handed to the system, can hold."""
    if isinstance(value, Mapping):
        return [problem for name, inner in value.items() for problem in _beyond(f"{key}.{name}", inner, origins)]
    if isinstance(value, list):
        return [problem for inner in value for problem in _beyond(key, inner, origins)][:1]
    if isinstance(value, str) and ("\0" in value or _not_utf8(value)):
        text = "must not hold the character NUL, nor bytes that are not UTF-8."
        return [Problem(key, text, value_text(value), origins.get(key))]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return [Problem(key, "must fit into 64 bits, as TOML's integers do.", value_text(value), origins.get(key))]
    return []


def _not_utf8(value: str) -> bool:
    """Whether it holds a lone surrogate, as which Python passes on bytes of a command line that are no UTF-8."""
    return any("\ud800" <= character <= "\udfff" for character in value)


M = TypeVar("M", bound=BaseModel)


def build(
    model: type[M], values: Mapping[str, Any], prefix: str, origins: Mapping[str, str]
) -> tuple[M | None, list[Problem]]:
    """An instance, or the problems of values whose names are known. `prefix` is the dotted place of the model, with its
    dot."""
    try:
        return model.model_validate(values), []
    except ValidationError as error:
        found: dict[str, Problem] = {}
        for entry in error.errors(include_url=False):
            if not entry["loc"]:  # a rule across the fields of a user's own arguments, in the user's words
                place = prefix.rstrip(".")
                found.setdefault(place, Problem(place, str(entry.get("ctx", {}).get("error", entry["msg"]))))
                continue
            key, field, value = _locate(model, values, entry["loc"])
            place = f"{prefix}{key}"
            text = " ".join(part for part in (f"must be {rule_of(field)}.", remedy(value, field)) if part)
            found.setdefault(place, Problem(place, text, value_text(value), origins.get(place)))
        return None, list(found.values())


def known_part(
    model: type[BaseModel], values: Mapping[str, Any], prefix: str, origins: Mapping[str, str]
) -> tuple[dict[str, Any], list[Problem]]:
    """The part of the values whose names the schema has, and a problem for each other name."""
    known: dict[str, Any] = {}
    problems = []
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name not in model.model_fields:
            problems += _unknown(key, name, value, model, prefix, origins)
            continue
        known[name] = value
        for inner in _models(model.model_fields[name]) if isinstance(value, Mapping) else ():
            known[name], found = known_part(inner, value, f"{key}.", origins)
            problems += found
    return known, problems


def _unknown(
    key: str, name: str, value: Any, model: type[BaseModel], prefix: str, origins: Mapping[str, str]
) -> list[Problem]:
    if isinstance(value, Mapping) and not new_place(key):
        old = [f"{key}.{inner}" for inner in value if new_place(f"{key}.{inner}")]
        if old:  # a section that is gone: its keys have new places
            return [Problem(each, str(new_place(each)), origin=origins.get(each)) for each in old]
    kind = "section" if isinstance(value, Mapping) else "key"
    return [Problem(key, new_place(key) or suggest(kind, name, prefix, model), origin=origins.get(key))]


def suggest(kind: str, name: str, prefix: str, model: type[BaseModel]) -> str:
    """What to say about an unknown name in a table."""
    places = _every_key(Config, "")
    last = [place.rsplit(".", 1)[-1] for place in places]
    if last.count(name) == 1:  # a right key in a wrong section, or one level too deep
        return f"unknown {kind} here. Did you mean {places[last.index(name)]}?"
    positive = model.model_fields.get(name[3:]) if name.startswith("no_") else None
    if positive is not None and bool in leaves(positive.annotation):
        return f"unknown {kind}. Write {prefix}{name[3:]} = false."
    if near := closest(name, model.model_fields):
        return f"unknown {kind}. Did you mean {prefix}{near}?"
    if name in last:
        return f"unknown {kind} here. Did you mean {places[last.index(name)]}?"
    if (near := closest(name, last)) is not None:
        return f"unknown {kind}. Did you mean {places[last.index(near)]}?"
    return f"unknown {kind}. {prefix.rstrip('.') or 'A configuration'} has: {', '.join(sorted(model.model_fields))}."


def _every_key(model: type[BaseModel], prefix: str) -> list[str]:
    found = []
    for name, field in model.model_fields.items():
        found.append(f"{prefix}{name}")
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found += _every_key(field.annotation, f"{prefix}{name}.")
    return found


def _locate(model: type[BaseModel], values: Any, location: tuple[int | str, ...]) -> tuple[str, FieldInfo, Any]:
    """Dotted key, field and value of an error; what comes after the field (items of lists, members of unions) is cut
    off."""
    names = []
    for name in location:
        names.append(str(name))
        field = model.model_fields[str(name)]
        values = values.get(name) if isinstance(values, Mapping) else values
        inner = next((kind for kind in _models(field) if isinstance(values, Mapping)), None)
        if inner is None:
            return ".".join(names), field, values
        model = inner
    return ".".join(names), field, values


def _models(field: FieldInfo) -> list[type[BaseModel]]:
    return [kind for kind in leaves(field.annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
