"""The configuration of a run: schema, loading, rules and layout arithmetic. Imports no torch: a check answers at
once."""

from titan.config.degrees import world_size_wanted
from titan.config.dump import dump, write_record
from titan.config.layout import Batch, Degrees
from titan.config.load import load
from titan.config.numerics import changed, numerics, numerics_hash
from titan.config.problems import ConfigError, Problem
from titan.config.resolve import Resolved, resolve
from titan.config.schema import Config
from titan.config.toml_text import value_text

__all__ = [
    "Batch",
    "Config",
    "ConfigError",
    "Degrees",
    "Problem",
    "Resolved",
    "changed",
    "dump",
    "load",
    "numerics",
    "numerics_hash",
    "resolve",
    "value_text",
    "world_size_wanted",
    "write_record",
]
