"""Rules of activation checkpointing under schedules that compute input and weight gradients apart.

Measured with torch 2.13, blocks not compiled. By operator: the run fails in its first backward, since such a block can
be gone through once only. Whole blocks: torch computes a block again for each of its weights' gradients and holds all
of it meanwhile, so that checkpointing costs memory (6 layers, 2 ranks: 151 MB at the peak, 121 without) and repeats the
collectives of tensor parallelism. A compiled block's backward is one node, and all of this does not arise.
"""

from __future__ import annotations

from pathlib import Path

from titan.config.problems import Problem
from titan.config.schema_model import ActivationCheckpoint, Compile
from titan.config.schema_parallelism import Parallelism
from titan.parallelisms.stages import SPLIT_BACKWARD, splits_backward

_WAY_OUT = 'compile the model (compile.enable = true), use pipeline_parallel_schedule = "Interleaved1F1B", or mode'


def by_operator(section: ActivationCheckpoint, parallelism: Parallelism, compile: Compile) -> list[Problem]:
    """Checkpointing by operator and a split backward."""
    if section.mode != "selective" or section.selective_ac_option != "op" or not _applies(parallelism, compile):
        return []
    text = f"{_schedule(parallelism)} goes through a block's backward twice, which this option forbids: {_WAY_OUT} "
    return [Problem("activation_checkpoint.selective_ac_option", f'{text}"none".', '"op"')]


def whole_blocks(section: ActivationCheckpoint, parallelism: Parallelism, compile: Compile) -> list[str]:
    """A warning where checkpointing whole blocks costs memory instead of saving it."""
    if section.mode not in ("full", "selective") or not _applies(parallelism, compile):
        return []
    return [
        f'activation_checkpoint.mode = "{section.mode}" under {_schedule(parallelism)} needs more memory than none: a '
        f'block is computed again for the gradient of each weight, and held; {_WAY_OUT} "none".'
    ]


def _applies(parallelism: Parallelism, compile: Compile) -> bool:
    compiled = compile.enable and "model" in compile.components
    if compiled or parallelism.pipeline_parallel_degree == 1:
        return False
    csv_file = Path(parallelism.pipeline_parallel_schedule_csv)
    if not parallelism.pipeline_parallel_schedule_csv:
        return parallelism.pipeline_parallel_schedule in SPLIT_BACKWARD
    return csv_file.is_file() and splits_backward(parallelism.pipeline_parallel_schedule, csv_file)


def _schedule(parallelism: Parallelism) -> str:
    return parallelism.pipeline_parallel_schedule_csv or parallelism.pipeline_parallel_schedule
