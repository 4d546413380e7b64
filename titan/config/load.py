"""Loads a configuration: defaults, then the files it extends, then the file, then the command line; later ones win.

Every problem of names, types and ranges is reported at once, before any process group or model exists. Rules that need
the world size or the model are in `resolve.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from titan.config import files, overrides
from titan.config.custom import schema_of
from titan.config.problems import ConfigError
from titan.config.schema import Config
from titan.config.validate import validate


def load(path: str | os.PathLike[str], arguments: Sequence[str] = ()) -> Config:
    """The configuration of a TOML file under command-line overrides (`--section.key=value`).

    Its `.origins` say where each key was set. It is of the class that `job.custom_config_module` names, where one is
    named. Raises ConfigError with all problems.
    """
    given, problems = overrides.parse(arguments)
    try:
        source = files.read(Path(path))
    except ConfigError as error:
        raise ConfigError([*error.problems, *problems]) from None
    source.update(given)
    schema, found = schema_of(source.values, source.origins)
    if schema is not Config:  # the command line is read by the types of the schema
        given, problems = overrides.parse(arguments, schema)
        source.update(given)
    problems += found
    try:
        config = validate(source, schema)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return config
