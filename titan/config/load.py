"""Loads a configuration: defaults, then the files it extends, then the file, then the command line; later ones win.

Every problem of names, types and ranges is reported at once, before any process group or model exists. Rules that need
the world size or the model are in `resolve.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from titan.config import files, overrides
from titan.config.problems import ConfigError
from titan.config.schema import Config
from titan.config.validate import validate


def load(path: str | os.PathLike[str], arguments: Sequence[str] = ()) -> Config:
    """The configuration of a TOML file under command-line overrides (`--section.key=value`).

    Raises ConfigError with all problems.
    """
    return load_with_origins(path, arguments)[0]


def load_with_origins(path: str | os.PathLike[str], arguments: Sequence[str] = ()) -> tuple[Config, Mapping[str, str]]:
    """As `load`, with where each key was set: `file:line` or "command line"; `dump` writes them down."""
    given, problems = overrides.parse(arguments)
    source = files.Source()
    try:
        source = files.read(Path(path))
    except ConfigError as error:
        raise ConfigError([*error.problems, *problems]) from None
    source.update(given)
    try:
        config = validate(source)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return config, source.origins
