"""Modules of the user's: imported by the configuration, to register models or to extend the schema.

`job.custom_config_module` names a module with a class `Config`, a subclass of `titan.config.Config`: sections of its
own, or sections of ours with more keys. All that holds for our keys (strictness, origins, the dump) holds for those.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from titan.config.problems import Problem
from titan.config.schema import Config
from titan.config.toml_text import value_text

_KEYS = (("job", "custom_config_module"), ("experimental", "custom_args_module"))
"""The second is the older name of the first."""


def import_module(key: str, name: str, origin: str | None = None) -> tuple[ModuleType | None, list[Problem]]:
    """A module from PYTHONPATH or the working directory, or why there is none; `key` is the one that names it."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name), []
    except ModuleNotFoundError as error:
        text = f"cannot be imported: {error}. Give package.module, on PYTHONPATH or in the working directory."
    except Exception as error:  # the user's code: whatever is wrong with it is said as one problem, with its place
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = f"cannot be imported: {type(error).__name__}: {error} ({last.filename}:{last.lineno})."
    return None, [Problem(key, text, value_text(name), origin)]


def schema_of(values: Mapping[str, Any], origins: Mapping[str, str]) -> tuple[type[Config], list[Problem]]:
    """The schema that a configuration asks for: ours, or the user's extension of it."""
    named = [(f"{section}.{name}", wanted) for section, name in _KEYS if (wanted := _text(values, section, name))]
    if len({wanted for _, wanted in named}) > 1:
        (first, _), (second, wanted) = named
        text = f"the older name of {first}, which says something else: delete this one."
        return Config, [Problem(second, text, value_text(wanted), origins.get(second))]
    if not named:
        return Config, []
    key, wanted = named[0]
    module, problems = import_module(key, wanted, origins.get(key))
    if module is None:
        return Config, problems
    found = getattr(module, "Config", None)
    if isinstance(found, type) and issubclass(found, Config):
        return found, []
    text = "the module has no class Config that extends titan.config.Config: class Config(titan.config.Config): ..."
    return Config, [Problem(key, text, value_text(wanted), origins.get(key))]


def _text(values: Mapping[str, Any], section: str, name: str) -> str:
    table = values.get(section)
    found = table.get(name) if isinstance(table, Mapping) else None
    return found if isinstance(found, str) else ""  # a value of another type is refused with all others
