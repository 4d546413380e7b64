"""The tiny runs of the parity tests: sizes uneven on purpose, rows with uneven valid tokens, and what a run must give
back.

A layout is a dictionary of overrides of the `parallelism`, `training`, `model.args`, ... sections. `run_layout` is
what each rank executes: the real trainer, step by step, and the local shards of gradients and weights with their
place in the full tensors, which `whole` puts together. So nothing of DTensor's own gathering is trusted.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from titan.config import Config
from titan.parallelisms.shards import local_region
from titan.parity.faults import Fault

VOCAB, SEQ, GLOBAL_ROWS, STEPS = 251, 32, 8, 3
# With the usual 1e-8, AdamW turns rounding of near-zero gradients of 8 layers into differences of 4e-5, in one
# process too.
EPS = 1e-6
TOKENIZER = str(Path(__file__).parent.parent / "assets" / "tokenizer251")
SHAPE = {"dim": 64, "n_layers": 4, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 96, "vocab_size": VOCAB}


class UnevenRows:
    """Random rows; some have almost no valid token, some begin with a masked prompt, one has none."""

    seq_len, fingerprint, tokenizer_fingerprint, rows_per_epoch = SEQ, "tiny", "tiny", 64

    def fetch(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        rows = [self._row(number) for number in range(start, start + count)]
        return np.stack([inputs for inputs, _ in rows]), np.stack([labels for _, labels in rows])

    def _row(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        tokens = np.random.default_rng(number).integers(0, VOCAB, SEQ + 1)
        labels = tokens[1:].copy()
        if number % 8 == 1:
            labels[3:] = -100
        elif number % 8 == 4:
            labels[: SEQ // 2 + 5] = -100
        elif number % 8 == 6:
            labels[:] = -100
        return tokens[:-1].astype(np.int64), labels.astype(np.int64)


def config(layout: dict[str, dict[str, Any]], folder: str = "/nonexistent") -> Config:
    """The tiny run with a layout's overrides, section by section."""
    base: dict[str, dict[str, Any]] = {
        "job": {"dump_folder": folder},
        "model": {"name": "llama3", "flavor": "debugmodel", "hf_assets_path": TOKENIZER, "args": dict(SHAPE)},
        "optimizer": {"lr": 1e-3, "eps": EPS},
        "lr_scheduler": {"warmup_steps": 2},
        "training": {
            "global_batch_size": GLOBAL_ROWS,
            "local_batch_size": -1,
            "seq_len": SEQ,
            "steps": STEPS,
            "mixed_precision_param": "float32",
            "max_norm": 1.0,
        },
        "parallelism": {"data_parallel_shard_degree": 1},
        "activation_checkpoint": {"mode": "none"},
        "debug": {"seed": 7},
    }
    for section, values in layout.items():
        target = base.setdefault(section, {})
        for key, value in values.items():
            target[key] = {**target[key], **value} if isinstance(value, dict) and key in target else value
    return Config.model_validate(base)


def make_trainer(settings: Config, rows: Any = None) -> Any:
    from titan.parity import measure

    return measure.make_trainer(settings, rows or UnevenRows())


def local_pieces(trainer: Any, *, grads: bool) -> list[tuple[str, tuple[int, ...], tuple[slice, ...], np.ndarray]]:
    """(FQN, full shape, box, values) of each counted parameter or gradient of this rank."""
    found = []
    for named in trainer.model.parameters:
        tensor = named.parameter.grad if grads else named.parameter.detach()
        if named.counted and tensor is not None:
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            found.append((named.fqn, tuple(tensor.shape), local_region(tensor), local.float().numpy().copy()))
    return found


def whole(pieces_of_ranks: list[list[Any]]) -> dict[str, torch.Tensor]:
    """Full tensors from the boxes of all ranks; every element must be covered."""
    full: dict[str, np.ndarray] = {}
    for fqn, shape, box, values in (piece for pieces in pieces_of_ranks for piece in pieces):
        full.setdefault(fqn, np.full(shape, np.nan, np.float32))[box] = values
    for fqn, values in full.items():
        assert not np.isnan(values).any(), f"{fqn}: not all of it is on some rank"
    return {fqn: torch.from_numpy(values) for fqn, values in full.items()}


def train_steps(trainer: Any, steps: int, fault: Fault | None = None) -> list[dict[str, Any]]:
    """Takes steps as the training loop does; a record each: loss, grad_norm, lr, tokens and this rank's pieces of
    the gradients.
    """
    from titan.parity.measure import take_step

    records = []
    for _ in range(steps):
        loss, norm, rate, pieces = take_step(trainer, partial(local_pieces, grads=True), fault)
        records.append({"loss": loss, "grad_norm": norm, "lr": rate, "grads": pieces})
    return records


def run_layout(layout: dict[str, dict[str, Any]], fault: Fault | None = None) -> dict[str, Any]:
    """What a rank does: build, take the steps, give back records, first and last weights."""
    trainer = make_trainer(config(layout))
    first = local_pieces(trainer, grads=False)
    records = train_steps(trainer, trainer.config.training.steps, fault)
    last = local_pieces(trainer, grads=False)
    trainer.loader.close()
    trainer.checkpoints.close()
    return {"first": first, "records": records, "last": last, "tokens": trainer.progress.tokens}


def first_weights(layout: dict[str, dict[str, Any]]) -> list[Any]:
    """The initial weights alone."""
    trainer = make_trainer(config(layout))
    trainer.loader.close()
    trainer.checkpoints.close()
    return local_pieces(trainer, grads=False)


def rows_of(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The steps' rows as the oracle takes them."""
    source = UnevenRows()
    return [tuple(map(torch.from_numpy, source.fetch(step * GLOBAL_ROWS, GLOBAL_ROWS))) for step in range(steps)]  # type: ignore[misc]
