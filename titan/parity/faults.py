"""Faults that turn a layout red, each one that real trainers had: the proof that parity can fail.

`titan parity --inject NAME` puts one into every layout but not into the oracle; the tests do it for each and expect the
layout named and exit code 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from torch import Tensor

    from titan.data.loader import StepData
    from titan.trainer import Trainer

Fault = Literal["divide", "skip_reduction", "swap_rows", "double_norm"]
NAMES: tuple[str, ...] = get_args(Fault)


def divide(valid_tokens: Tensor) -> Tensor:
    """The loss divided by twice the valid tokens, as by ranks that count them for themselves."""
    return valid_tokens * 2


def skip_reduction(trainer: Trainer) -> None:
    """One rank's gradients miss a part of the sum over ranks."""
    from titan.parallelisms.shards import local_tensor

    if trainer.world.rank == 0:
        for named in trainer.model.parameters:
            if named.parameter.grad is not None:
                local_tensor(named.parameter.grad).mul_(0.5)


def swap_rows(trainer: Trainer, data: StepData) -> None:
    """The first row of the last batch rank is one of the next step."""
    import torch

    mesh, batch = trainer.mesh, trainer.batch
    ranks, rank = (mesh.degrees.batch, mesh.batch_rank) if mesh else (1, 0)
    if rank == ranks - 1:
        inputs, labels = trainer.rows.fetch(trainer.progress.rows + batch.global_rows, 1)
        data.inputs[0, 0], data.labels[0, 0] = torch.from_numpy(inputs[0]), torch.from_numpy(labels[0])


def double_norm(norm: Tensor) -> Tensor:
    """Every square counted twice, as by replicas that all add their own."""
    return norm * 2**0.5
