"""What decides the numbers of a run: model, data, batch, optimizer, schedule, seed, precision; not degrees or folders.

Two runs that agree here differ by rounding at most. A checkpoint stores the hash, and a resume names what differs from
the configuration that was saved. Whole sections count, less what is listed here, so that a new key counts until someone
says that it does not. The content of the data and the tokenizer is not here: the checkpoint holds fingerprints of them.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from titan.config.files import merge
from titan.config.schema import Config
from titan.config.toml_text import value_text

_SECTIONS = ("model", "quantize", "optimizer", "lr_scheduler", "training")
_KEYS = ("debug.seed",)
_NOT = frozenset(
    {
        # Where things are, and what is printed.
        "model.hf_assets_path",
        "model.tokenizer_path",
        "model.print_after_conversion",
        "training.dataset_path",
        "training.cache_folder",
        "training.tokenizer_workers",
        # How it is computed, the same to rounding.
        "optimizer.implementation",
        "optimizer.early_step_in_backward",
        "training.enable_cpu_offload",
        "training.gc_freq",
        "training.gc_debug",
        # A cap on the rows of a forward; counted below where it makes the batch.
        "training.local_batch_size",
    }
)
_NOT_TABLES = ("training.dataloader.",)
_TOTAL, _STEPS = "lr_scheduler.total_steps", "training.steps"
_GLOBAL, _LOCAL = "training.global_batch_size", "training.local_batch_size"


def numerics(config: Config) -> dict[str, Any]:
    """Dotted key to value of everything that decides the numbers, in the order of the schema.

    `lr_scheduler.total_steps` is the length that is used, also where it is not set; `training.local_batch_size` is in
    only where it makes the batch (`global_batch_size = -1`, which also follows the degrees).
    """
    return _numerics(config.model_dump())


def numerics_hash(config: Config) -> str:
    """SHA-256 of `numerics`, in hexadecimal; the same on every machine."""
    text = json.dumps(numerics(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def changed(old_toml: str, config: Config) -> list[str]:
    """What differs from a configuration that `dump` wrote: "optimizer.lr 0.001 -> 0.0005", in the order of the schema.

    A key that the old text lacks, since it is newer, counts at its default. Raises ValueError where it is not TOML.
    """
    old, new = _numerics(_over_defaults(tomllib.loads(old_toml), type(config)())), numerics(config)
    return [
        f"{key} {value_text(old.get(key))} -> {value_text(new.get(key))}"
        for key in [*new, *(key for key in old if key not in new)]
        if old.get(key) != new.get(key)
    ]


def _numerics(values: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: value for section in _SECTIONS for key, value in _leaves(values[section], f"{section}.")}
    found |= {key: _at(values, key) for key in _KEYS}
    if found[_TOTAL] is None:
        found[_TOTAL] = found[_STEPS]
    if found[_GLOBAL] == -1:
        found[_LOCAL] = _at(values, _LOCAL)
    return found


def _leaves(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{key}.")
        elif key not in _NOT and not key.startswith(_NOT_TABLES):
            yield key, value


def _over_defaults(values: Mapping[str, Any], defaults: Config) -> dict[str, Any]:
    whole = defaults.model_dump()
    merge(whole, values)
    return whole


def _at(values: Mapping[str, Any], key: str) -> Any:
    found: Any = values
    for name in key.split("."):
        found = found[name]
    return found
