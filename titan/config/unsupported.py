"""Keys of features that this project does not have: accepted at the value that leaves the feature off, refused
otherwise.

One table, from the switch of each feature to what to do instead. The other keys of a feature that is off are merely
without effect, and `idle.py` says so once, so that published files load unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from titan.config.problems import Problem
from titan.config.schema import Config
from titan.config.toml_text import value_text

NO_QUANTIZATION = 'quantized training is not supported: use training.mixed_precision_param = "bfloat16".'
NO_EXPERTS = "there is no mixture of experts here: keep 1."
RUN_FOLDER = "the resolved configuration is always written to config.toml in job.dump_folder: delete this key."

INSTEAD: dict[str, str] = {
    "job.config_file": "give the file as the argument of the command instead.",
    "job.save_config_file": RUN_FOLDER,
    "job.custom_config_module": "not supported: experimental.custom_import registers models.",
    "model.converters": NO_QUANTIZATION,
    "model.print_after_conversion": "there are no converters, so nothing to print: delete this key.",
    "optimizer.early_step_in_backward": "not supported, since gradients are clipped by the norm of the whole model; "
    "parallelism.data_parallel_shard_degree lowers memory.",
    "parallelism.enable_async_tensor_parallel": "not supported: delete this key, tensor parallelism works without.",
    "parallelism.expert_parallel_degree": NO_EXPERTS,
    "parallelism.expert_tensor_parallel_degree": NO_EXPERTS,
    "parallelism.expert_parallel_comm_backend": "there is no mixture of experts here: delete this key.",
    "checkpoint.create_seed_checkpoint": "not needed: initial weights are the same at every layout.",
    "checkpoint.initial_load_in_hf": "not supported yet: only checkpoints of this trainer can be loaded.",
    "checkpoint.initial_load_in_hf_quantized": "not supported: only checkpoints of this trainer can be loaded.",
    "checkpoint.last_save_in_hf": "not supported yet: checkpoint.last_save_model_only writes the weights alone.",
    "comm.mode": "not supported: `titan check` needs no process group.",
    "memory_estimation.enable": "not supported: run two steps and read memory_gib in metrics.jsonl.",
    "fault_tolerance.enable": "torchft is not supported: MAX_RESTARTS restarts a run from its newest checkpoint.",
    "experimental.custom_args_module": "replaced by experimental.custom_import and [model.args].",
    "validation.enable": "not supported yet: train on, and look at the loss of checkpoints on held-out text.",
    "debug.moe_force_load_balance": "there is no mixture of experts here: delete this key.",
}


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
        if value != default:
            found.append(Problem(key, instead, value_text(value), origins.get(key)))
    return found


_DEFAULTS = Config()
