"""Real runs for the plan's tests: the real trainer on gloo, a model of a chosen size, random rows, its memory measured
and its collectives counted.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from titan.config import Config, resolve
from titan.runtime import World, device_type

TOKENIZER = str(Path(__file__).parent.parent / "assets" / "tokenizer251")


class RandomRows:
    """Rows of random tokens, every one of them valid."""

    fingerprint, tokenizer_fingerprint, rows_per_epoch = "random", "random", 1 << 20

    def __init__(self, seq_len: int, vocab: int) -> None:
        self.seq_len, self._vocab = seq_len, vocab

    def fetch(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        tokens = np.random.default_rng(start).integers(0, self._vocab, (count, self.seq_len + 1))
        return tokens[:, :-1].astype(np.int64), tokens[:, 1:].astype(np.int64)


def config(layout: dict[str, dict[str, Any]], model: dict[str, Any]) -> Config:
    """A run with a layout's overrides, section by section; `model` has the model's arguments."""
    base: dict[str, dict[str, Any]] = {
        "job": {"dump_folder": "/nonexistent"},
        "model": {"name": "llama3", "flavor": "debugmodel", "hf_assets_path": TOKENIZER, "args": model},
        "training": {
            "global_batch_size": 8,
            "local_batch_size": -1,
            "seq_len": 256,
            "steps": 3,
            "mixed_precision_param": "float32",
        },
        "parallelism": {"data_parallel_shard_degree": 1},
        "activation_checkpoint": {"mode": "none"},
        "debug": {"seed": 7},
    }
    for section, values in layout.items():
        base.setdefault(section, {}).update(values)
    return Config.model_validate(base)


def make_trainer(settings: Config) -> Any:
    from titan.trainer import Trainer

    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    world = World(rank, rank, size, torch.device(device_type()))
    resolved = resolve(settings, size, world.device.type)
    rows = RandomRows(settings.training.seq_len, resolved.model_args.vocab_size or 0)
    return Trainer(resolved, world, rows=rows)


def take_step(trainer: Any) -> None:
    """One optimizer step as the loop takes it, without its log."""
    data = next(trainer.loader)
    valid, _stop = trainer.open_step(data)
    share = trainer.forward_backward(data, valid)
    trainer.update(trainer.norm(share))


def close(trainer: Any) -> None:
    trainer.loader.close()
    trainer.checkpoints.close()


Case = tuple[dict[str, dict[str, Any]], dict[str, Any]]
"""A layout's overrides, and the model's arguments."""


def measured_peaks(cases: list[Case]) -> list[int]:
    """The peak of live bytes on this rank in a second step of each case."""
    from titan.plan.measure import measure

    found = []
    for layout, model in cases:
        built: list[Any] = []

        def build(layout: Any = layout, model: Any = model, built: list[Any] = built) -> Any:
            built.append(make_trainer(config(layout, model)))
            return built[0]

        found.append(measure(build, take_step, 2).steps[-1])
        close(built.pop())
        gc.collect()
    return found


def counted_steps(cases: list[Case], debug_mode: bool = False) -> list[dict[str, Any]]:
    """`counted_step` of each case."""
    return [counted_step(layout, model, debug_mode) for layout, model in cases]


def counted_step(layout: dict[str, dict[str, Any]], model: dict[str, Any], debug_mode: bool = False) -> dict[str, Any]:
    """The collectives of a second step on this rank, with the ranks of each of its groups by dimension; and of a third
    what torch's CommDebugMode counts, which bears one forward a step."""
    from torch.distributed.tensor.debug import CommDebugMode

    from tests.plan.counting import counted

    trainer = make_trainer(config(layout, model))
    take_step(trainer)
    with counted() as counts:
        take_step(trainer)
    torch_counts = CommDebugMode()
    if debug_mode:
        with torch_counts:
            take_step(trainer)
    close(trainer)
    mesh = trainer.mesh
    groups = {"tp": mesh.tp, "pp": mesh.pp, "dp_replicate": mesh.fsdp["dp_replicate"], "fsdp": mesh.fsdp["fsdp"]}
    if mesh.cp is not None:
        groups["cp"] = mesh.cp
    return {
        "counts": dict(counts),
        "groups": {name: ",".join(map(str, sorted(one.mesh.flatten().tolist()))) for name, one in groups.items()},
        "pp_rank": mesh.pp_rank,
        "torch": {str(operator): calls for operator, calls in torch_counts.get_comm_counts().items()},
    }
