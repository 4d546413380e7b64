"""Rules of what only the compiler does: the budget of saved activations and its drawing."""

from __future__ import annotations

import importlib.util

from titan.config.problems import Problem
from titan.config.schema_model import ActivationCheckpoint, Compile

_MODE = "activation_checkpoint.mode"
_PARETO = "activation_checkpoint.visualize_memory_budget_pareto"


def memory_budget(section: ActivationCheckpoint, compile: Compile) -> list[Problem]:
    """The budget is the compiler's partitioner's: the blocks must be compiled, by a backend that partitions."""
    if section.mode != "memory_budget":
        return []
    problems = []
    if not compile.enable or "model" not in compile.components:
        text = (
            'the compiler chooses what is kept: set compile.enable = true with "model" in compile.components, or use '
            '"selective" with selective_ac_option = "op".'
        )
        problems.append(Problem(_MODE, text, '"memory_budget"'))
    elif compile.backend == "eager":
        text = 'must be a backend that partitions the graph, for activation_checkpoint.mode = "memory_budget": '
        problems.append(Problem("compile.backend", f'{text}"inductor" or "aot_eager".', '"eager"'))
    if section.visualize_memory_budget_pareto and importlib.util.find_spec("matplotlib") is None:
        text = "torch draws it with matplotlib, which is not installed: pip install matplotlib, or write false."
        problems.append(Problem(_PARETO, text, "true"))
    return problems
