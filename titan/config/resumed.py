"""What a resume changes, said before its first step; and the one change that it refuses.

The rule: hyper-parameters come from the configuration, never from the checkpoint, and are in force from the first
resumed step: learning rate and schedule as functions of the step, weight decay, batch, clipping. The data goes on with
the row after the last one, whatever the batch. So a change is allowed, and a line names it. Refused is a batch that
nobody changed: with `global_batch_size = -1` it follows the data-parallel degree, and another number of machines would
train another run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from titan.config.numerics import changed
from titan.config.problems import ConfigError, Problem
from titan.config.schema import Config


def resumed(state: Mapping[str, Any], config: Config, *, global_rows: int, layout: str) -> list[str]:
    """Sentences about what differs from the run that wrote the checkpoint.

    Args:
        state: its `step`, `config` (TOML), `layout` and `global_rows`, as far as it has them.
        global_rows: rows of a step of this run.
        layout: this run's degrees.

    Raises ConfigError where `global_batch_size = -1` makes another batch of the same `local_batch_size`.
    """
    lines = changed(state["config"], config) if "config" in state else []
    old_rows, training = state.get("global_rows", global_rows), config.training
    edited = any(line.startswith("training.") and "_batch_size " in line for line in lines)
    if old_rows != global_rows and training.global_batch_size == -1 and not edited:
        text = (
            f"local_batch_size {training.local_batch_size} x the data-parallel ranks is {global_rows} rows a step at "
            f"this layout, and the checkpoint was trained with {old_rows} ({state.get('layout')}): set {old_rows} to "
            f"go on with the same run, {global_rows} to change the batch."
        )
        raise ConfigError([Problem("training.global_batch_size", text, value="-1")])
    first = state.get("step", 0) + 1
    lines = [line for line in lines if not line.startswith("debug.seed ")]  # stays that of the checkpoint
    said = [f"resume: {line}, from step {first} on" for line in lines]
    if old_rows != global_rows:
        said.append(f"resume: {old_rows} -> {global_rows} rows a step, from step {first} on")
    if state.get("layout", layout) != layout:
        said.append(f"resume: saved at {state['layout']}, goes on at {layout}")
    return said
