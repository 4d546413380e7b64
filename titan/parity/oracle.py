"""The oracle: a run on one process as a plain loop, sharing no code with what it judges.

No mesh, no trainer, no wrapper: a function from weights by name to logits, torch's own cross-entropy, norm and
optimizer. Mixed precision is a cast of each weight inside the graph, so that gradients reach float32 masters. Every
layout is tested against this: keep it short enough to be seen to be right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Forward = Callable[[Mapping[str, Tensor], Tensor], Tensor]
"""(weights by name, ids `(rows, seq)` int64) to logits `(rows, seq, vocab)`."""


@dataclass(frozen=True)
class Step:
    """One step as the oracle saw it.

    Attributes:
        loss: sum of token losses / valid tokens of the step.
        grad_norm: of the whole model, before clipping.
        grads: by name, before clipping; good until the next step is asked for.
    """

    loss: float
    grad_norm: float
    grads: dict[str, Tensor]


@dataclass(frozen=True)
class Hyper:
    """What the loop needs to know: clipping, the optimizer as torch takes it, and the type of forward and backward."""

    max_norm: float = 1.0
    optimizer: str = "AdamW"
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    compute: torch.dtype = torch.float32


def train(
    forward: Forward,
    weights: dict[str, Tensor],
    steps: Iterable[tuple[Tensor, Tensor]],
    rates: Iterable[float],
    hyper: Hyper,
    *,
    rows_at_once: int | None = None,
    backwards: bool = False,
) -> Iterator[Step]:
    """Trains `weights` in place, yielding each step before its update.

    Args:
        weights: by name; a tied weight stands there once.
        steps: (inputs, labels) of each step, `(rows, seq)` int64, label -100 where no loss is taken.
        rates: learning rate of each step.
        rows_at_once: rows of one forward, all where None. Like `backwards`, the order of the rows, it changes nothing
            but rounding: the noise floor.
    """
    w = {name: tensor.requires_grad_() for name, tensor in weights.items()}
    groups = [
        {"params": [p for p in w.values() if p.ndim >= 2], "weight_decay": hyper.weight_decay},
        {"params": [p for p in w.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = getattr(torch.optim, hyper.optimizer)(groups, betas=hyper.betas, eps=hyper.eps)
    for (inputs, labels), rate in zip(steps, rates, strict=True):
        valid, loss = (labels != -100).sum().clamp(min=1), 0.0
        order = torch.arange(len(inputs), device=inputs.device)
        for rows in torch.split(order.flip(0) if backwards else order, rows_at_once or len(inputs)):
            logits = forward({name: p.to(hyper.compute) for name, p in w.items()}, inputs[rows])
            part = F.cross_entropy(logits.float().flatten(0, 1), labels[rows].flatten(), reduction="sum") / valid
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.item()
        grads = {name: p.grad for name, p in w.items() if p.grad is not None}
        norm = torch.stack([g.double().norm() for g in grads.values()]).norm().item()
        yield Step(loss, norm, grads)
        for group in optimizer.param_groups:
            group["lr"] = rate
        for g in grads.values():
            g.mul_(min(1.0, hyper.max_norm / (norm + 1e-6)))
        optimizer.step()
        optimizer.zero_grad()
