"""Small runs to plan: the debug model on any world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from titan.config import Config, Resolved, resolve
from titan.plan.devices import DEVICES
from titan.plan.request import Target

CONFIGS = Path(__file__).parents[2] / "configs" / "llama3"
DEBUG = str(CONFIGS / "debug.toml")


def resolved(sections: dict[str, dict[str, Any]] | None = None, world_size: int = 1) -> Resolved:
    """The debug model, 32 rows of 128 tokens, with other values in some sections."""
    values: dict[str, dict[str, Any]] = {
        "training": {"seq_len": 128, "global_batch_size": 32, "local_batch_size": -1},
        "lr_scheduler": {"warmup_steps": 2},
    }
    for section, given in (sections or {}).items():
        values[section] = {**values.get(section, {}), **given}
    return resolve(Config.model_validate(values), world_size, "cuda")


def target(device: str = "h100", limit: int | None = None) -> Target:
    found = DEVICES[device]
    return Target(found, found.per_node, found.memory if limit is None else limit)
