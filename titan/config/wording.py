"""The rule of a field in words, and what to write instead of a value that breaks it.

Read from the schema's own annotations, so that a rule has one source; pydantic's wording never reaches the user. Also
serves the arguments of models, which are pydantic classes too.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from titan.config.problems import closest
from titan.config.section import Rule
from titan.config.toml_text import value_text

_SIGNS: tuple[tuple[type, str, str], ...] = (
    (annotated_types.Ge, "ge", ">="),
    (annotated_types.Gt, "gt", ">"),
    (annotated_types.Le, "le", "<="),
    (annotated_types.Lt, "lt", "<"),
)
_NAMES = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
_PLURALS = {int: "integers", float: "numbers", str: "strings"}


def rule_of(field: FieldInfo) -> str:
    """What a value of the field must be: "an integer >= 1", "one of 'a', 'b'"."""
    return _rule(field.annotation, field.metadata)


def leaves(annotation: Any) -> list[Any]:
    """The alternatives of a type: members of unions, classes, values of Literals as `Literal[...]`; None is left
    out."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return leaves(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [leaf for member in get_args(annotation) for leaf in leaves(member)]
    return [] if annotation is type(None) else [annotation]


def takes_text(field: FieldInfo) -> bool:
    """Whether the field takes strings and nothing else, so that a command line needs no quotes."""
    return all(leaf is str or _choices(leaf) for leaf in leaves(field.annotation))


def takes_none(field: FieldInfo) -> bool:
    """Whether the field may be unset."""
    return type(None) in get_args(field.annotation)


def remedy(value: Any, field: FieldInfo) -> str:
    """What to write instead, as a sentence, or "" where the rule says it all."""
    kinds = leaves(field.annotation)
    if isinstance(value, str):
        choices = [choice for kind in kinds for choice in _choices(kind)]
        if near := closest(value, choices):
            return f"Did you mean {value_text(near)}?"
        if bool in kinds and value.lower() in ("true", "false", "yes", "no", "on", "off"):
            return f"Write {'true' if value.lower() in ('true', 'yes', 'on') else 'false'}, without quotes."
        if {int, float} & set(kinds) and _is_number(value):
            return f"Write the number without quotes: {value.strip()}."
        if any(get_origin(kind) is list for kind in kinds):
            return f"Write a list: [{value_text(value)}]."
    elif isinstance(value, float) and int in kinds and value.is_integer():
        return f"Write {int(value)}."
    elif isinstance(value, int) and not isinstance(value, bool) and str in kinds:
        return f'Write it in quotes: "{value}".'
    return ""


def _rule(annotation: Any, metadata: Iterable[Any]) -> str:
    flat = [inner for item in metadata for inner in (item.metadata if isinstance(item, FieldInfo) else (item,))]
    for item in flat:
        if isinstance(item, Rule):
            return item.text
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _rule(args[0], [*flat, *args[1:]])
    if origin in (Union, types.UnionType):
        return " or ".join(_rule(member, flat) for member in args if member is not type(None))
    if origin is Literal:
        return (f"one of {', '.join(map(repr, args))}") if len(args) > 1 else repr(args[0])
    if origin is list:
        return f"a list of {_plural(args[0])}"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "a table"
    return " and ".join([_NAMES.get(annotation, str(annotation)), *_bounds(flat)]).replace(" and ", " ", 1)


def _bounds(metadata: Iterable[Any]) -> list[str]:
    return [
        f"{sign} {_plain(getattr(item, name))}"
        for item in metadata
        for kind, name, sign in _SIGNS
        if isinstance(item, kind)
    ]


def _plural(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is list:
        return f"lists of {_plural(get_args(annotation)[0])}"
    return _PLURALS.get(annotation) or ", ".join(map(repr, _choices(annotation)))


def _choices(annotation: Any) -> tuple[Any, ...]:
    """Values that a Literal, or a list of Literals, offers."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return _choices(get_args(annotation)[0]) if get_origin(annotation) is list else ()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else str(number)
