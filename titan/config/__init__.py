"""The configuration of a run: schema and layout arithmetic. Imports no torch, so that a check answers at once."""

from titan.config.layout import Batch, Degrees
from titan.config.schema import Config

__all__ = ["Batch", "Config", "Degrees"]
