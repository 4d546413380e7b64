"""Command-line overrides: `--section.key=value`, `--section.key value`; `--section.key` alone is true and
`--section.no_key` false.

The value is read as TOML, and as a plain string where it is no TOML; where the schema takes only text, it is the text
as it stands, so that `--activation_checkpoint.selective_ac_option=2` needs no quotes; where it takes a boolean, True
and False (as torchtitan's command line has them) are read too.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from titan.config.files import Source, dotted_keys, merge
from titan.config.problems import Problem
from titan.config.schema import Config
from titan.config.wording import leaves, takes_text

COMMAND_LINE = "command line"


def parse(arguments: Sequence[str], schema: type[BaseModel] = Config) -> tuple[Source, list[Problem]]:
    """The values that the arguments set, later ones over earlier ones, and what is wrong with them."""
    source = Source()
    problems = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        key, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or "." not in key or not all(key.split(".")):
            problems.append(_problem(argument, "overrides look like --section.key=value."))
            continue
        field = field_at(key, schema)
        value: Any
        if (positive := _negated(key, schema)) and not equals:
            key, value = positive, False
        elif equals:
            value = _value(text, field)
        elif rest and not rest[0].startswith("--"):
            value = _value(rest.pop(0), field)
        elif field is None or bool in leaves(field.annotation):
            value = True
        else:
            problems.append(_problem(argument, f"needs a value: --{key}=VALUE."))
            continue
        table: dict[str, Any] = {}
        inner = table
        *sections, name = key.split(".")
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
        merge(source.values, table)
        source.origins.update(dict.fromkeys(dotted_keys(table), COMMAND_LINE))
    return source, problems


def field_at(key: str, schema: type[BaseModel] = Config) -> FieldInfo | None:
    """The schema's field of a dotted key, None where there is none (unknown, or inside a free table)."""
    model: Any = schema
    field: FieldInfo | None = None
    for name in key.split("."):
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or name not in model.model_fields:
            return None
        field = model.model_fields[name]
        model = field.annotation
    return field


def _negated(key: str, schema: type[BaseModel]) -> str | None:
    """`compile.enable` for `compile.no_enable` or `compile.no-enable`, where that is a boolean."""
    section, _, name = key.rpartition(".")
    if not name.startswith(("no_", "no-")) or field_at(key, schema) is not None:
        return None
    positive = f"{section}.{name[3:].replace('-', '_')}"
    field = field_at(positive, schema)
    return positive if field is not None and bool in leaves(field.annotation) else None


def _value(text: str, field: FieldInfo | None) -> Any:
    if field is not None and bool in leaves(field.annotation) and text in ("True", "False"):
        return text == "True"
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # TOMLDecodeError, or a number or nesting that Python's reader cannot hold
        return text
    if set(parsed) != {"value"}:  # a line break in the argument began another key
        return text
    value = parsed["value"]
    return text if field is not None and takes_text(field) and not isinstance(value, str) else value


def _problem(argument: str, text: str) -> Problem:
    return Problem(argument, text, origin=COMMAND_LINE)
