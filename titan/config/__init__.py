"""The configuration of a run: schema, loading, rules and layout arithmetic. Imports no torch: a check answers at
once."""

from titan.config.dump import dump
from titan.config.layout import Batch, Degrees
from titan.config.load import load, load_with_origins
from titan.config.problems import ConfigError, Problem
from titan.config.schema import Config

__all__ = ["Batch", "Config", "ConfigError", "Degrees", "Problem", "dump", "load", "load_with_origins"]
