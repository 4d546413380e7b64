"""A small model, its optimizer and a manager over them, as the trainer makes them, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from titan.checkpoint import CheckpointManager
from titan.checkpoint.manifest import MANIFEST, entry_of, parse, to_bytes
from titan.config.schema_checkpoint import Checkpoint
from titan.parallelisms.parameters import named_parameters


def model(seed: int = 0, width: int = 6) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.LayerNorm(width), nn.Linear(width, 3, bias=False))


def optimizer_of(part: nn.Module, **options: Any) -> AdamW:
    return AdamW(part.parameters(), **{"lr": 1e-2, "weight_decay": 0.1, **options})


def train(part: nn.Module, optimizer: Optimizer, steps: int, seed: int = 1) -> None:
    torch.manual_seed(seed)
    for _ in range(steps):
        part(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def manager(folder: Path, part: nn.Module, optimizer: Optimizer, **section: Any) -> CheckpointManager:
    options = {"enable": True, "last_save_model_only": False, **section}
    return CheckpointManager(Checkpoint(**options), folder, named_parameters([part], {}), optimizer)


def saved(folder: Path, steps: list[int], **section: Any) -> None:
    """Checkpoints of the toy in `folder`, one a step, each of other weights."""
    part = model()
    optimizer = optimizer_of(part)
    one = manager(folder, part, optimizer, **section)
    for step in steps:
        train(part, optimizer, 1, seed=step)
        one.save(step, {"rows": 10 * step})
    one.close()


def snapshot(part: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Copies of all weights and optimizer state, by name."""
    values = {}
    for name, parameter in part.named_parameters():
        values[name] = parameter.detach().clone()
        for key, value in optimizer.state[parameter].items():
            values[f"{name}.{key}"] = value.clone()
    return values


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def flip(path: Path, bit: int | None = None) -> None:
    """Flips one bit of a file, by default in its middle."""
    data = bytearray(path.read_bytes())
    bit = 4 * len(data) if bit is None else bit
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def reseal(folder: Path) -> None:
    """Makes the manifest true of the files that are there now."""
    files = {path.name: entry_of(path.read_bytes()) for path in folder.iterdir() if path.name != MANIFEST}
    step = parse((folder / MANIFEST).read_bytes()).step
    (folder / MANIFEST).write_bytes(to_bytes(step, files))


def steps_on_disk(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
