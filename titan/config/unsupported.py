"""Keys of features that this project does not have: accepted at the value that leaves the feature off, refused
otherwise.

From the switch of each feature to what to do instead. The other keys of a feature that is off are merely without
effect, and `idle.py` says so once, so that published files load unchanged; so are the few whose purpose is served
without them. What is in none of these tables works: a test finds who reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from titan.config.problems import Problem
from titan.config.schema import Config
from titan.config.toml_text import value_text

NO_QUANTIZATION = 'quantized training is not supported: use training.mixed_precision_param = "bfloat16".'
NO_EXPERTS = "there is no mixture of experts here: keep 1."

INSTEAD: dict[str, str] = {
    "job.config_file": "a file cannot name itself: give it as the argument of the command, or as --job.config_file.",
    "model.converters": NO_QUANTIZATION,
    "model.print_after_conversion": "there are no converters, so nothing to print: delete this key.",
    "parallelism.enable_async_tensor_parallel": "not supported: it needs symmetric memory between GPUs, on which "
    "nothing here has been tested; delete this key, tensor parallelism works without.",
    "parallelism.expert_parallel_degree": NO_EXPERTS,
    "parallelism.expert_tensor_parallel_degree": NO_EXPERTS,
    "parallelism.expert_parallel_comm_backend": "there is no mixture of experts here: delete this key.",
    "checkpoint.initial_load_in_hf": "not supported yet: only checkpoints of this trainer can be loaded.",
    "checkpoint.initial_load_in_hf_quantized": "not supported: only checkpoints of this trainer can be loaded.",
    "checkpoint.last_save_in_hf": "not supported yet: checkpoint.last_save_model_only writes the weights alone.",
    "comm.mode": 'not supported: use "fake_backend", a dry run of one rank, or gloo processes on the CPU '
    "(TITAN_DEVICE=cpu).",
    "memory_estimation.enable": "not supported: `titan plan` predicts the memory of each rank without running it.",
    "fault_tolerance.enable": "torchft is not supported: MAX_RESTARTS restarts a run from its newest checkpoint.",
    "validation.enable": "not supported yet: train on, and look at the loss of checkpoints on held-out text.",
    "debug.moe_force_load_balance": "there is no mixture of experts here: delete this key.",
}

_ONLY = {"comm.mode": ("local_tensor",)}
"""Where some values of a key are supported, those that are not."""

WORKS_ELSE = frozenset({"job.config_file", "comm.mode"})
"""Of those above: what works on the command line, or at other values."""

PARTS: dict[str, str] = {
    "quantize.": "model.converters",
    "memory_estimation.": "memory_estimation.enable",
    "fault_tolerance.": "fault_tolerance.enable",
    "validation.": "validation.enable",
    "checkpoint.enable_ft_dataloader_checkpoints": "fault_tolerance.enable",
    "parallelism.pipeline_parallel_expert_parallel_overlap": "parallelism.expert_parallel_degree",
}
"""Beginnings of keys to the switch of their feature: without effect while that is off, which it always is."""

NOT_NEEDED: dict[str, str] = {
    "training.dataloader.num_workers": "reading a row is a slice of a memory map, done ahead in a thread",
    "training.dataloader.persistent_workers": "reading a row is a slice of a memory map, done ahead in a thread",
    "training.dataloader.pin_memory": "rows are pinned wherever there is an accelerator",
}
"""Accepted at any value, with a warning: what they are for is done without them."""


def switch_of(key: str) -> str | None:
    """The switch of the feature that a key belongs to, where the feature is not there."""
    return next((switch for start, switch in PARTS.items() if key.startswith(start) and key != switch), None)


def problems(values: Mapping[str, Any], origins: Mapping[str, str]) -> list[Problem]:
    """One problem for each unsupported key in `values` (nested tables) that is not at its default."""
    found = []
    for key, instead in INSTEAD.items():
        section, name = key.split(".")
        table = values.get(section)
        if not isinstance(table, Mapping) or name not in table:
            continue
        value = table[name]
        default = getattr(getattr(_DEFAULTS, section), name)
        if value in _ONLY[key] if key in _ONLY else value != default:
            found.append(Problem(key, instead, value_text(value), origins.get(key)))
    return found


_DEFAULTS = Config()
