"""Runs whose data goes wrong at one row, for the tests of what is not finite.

The row is marked by its first labels; the loss, wrapped on each rank, answers it with NaN in the logits (as an overflow
in the model would), in the loss alone, or in the gradient alone.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.distributed import tiny
from titan.parallelisms.loss import TokenLoss
from titan.runtime import StopRequest

BAD_ROW, BAD_STEP = 27, 4  # steps of 8 rows
MARK = (3, 1, 4, 1, 5)


class Rows(tiny.UnevenRows):
    """The tiny rows; `steps` names the eighths of them to read in turn, None: all in order.

    Args:
        bad: whether the row is marked.
    """

    def __init__(self, *, bad: bool, steps: list[int] | None = None) -> None:
        self._bad, self._steps = bad, steps

    def fetch(self, start: int, count: int) -> Any:
        inputs, labels = super().fetch(start, count) if self._steps is None else self._mapped(start, count)
        if self._bad and start <= BAD_ROW < start + count:
            for first in (0, tiny.SEQ // 4, tiny.SEQ // 2, 3 * tiny.SEQ // 4):  # in each part that cp cuts
                labels[BAD_ROW - start, first : first + len(MARK)] = MARK
        return inputs, labels

    def _mapped(self, start: int, count: int) -> Any:
        step, row = divmod(start, tiny.GLOBAL_ROWS)
        steps = self._steps or []
        number = steps[step] if step < len(steps) else step  # beyond the run: read ahead, never used
        return super().fetch(number * tiny.GLOBAL_ROWS + row, count)


def _marked(labels: Tensor) -> Tensor:
    """(rows, seq) to (rows,) bool."""
    windows = labels.unfold(1, len(MARK), 1)
    return (windows == torch.tensor(MARK)).all(-1).any(-1)


@contextlib.contextmanager
def faulty_loss(kind: str) -> Iterator[None]:
    """Within it, a marked row spoils `kind`: "logits", "loss" or "gradient"."""
    sound = TokenLoss.__call__

    def call(self: TokenLoss, logits: Tensor, labels: Tensor) -> Tensor:
        bad = _marked(labels)
        if not bad.any():
            return sound(self, logits, labels)
        if kind == "loss":
            return sound(self, logits, labels) + math.nan
        if kind == "logits":
            return sound(self, torch.where(bad[:, None, None], torch.nan, logits), labels)
        if logits.requires_grad:
            logits.register_hook(lambda grad: torch.where(bad[:, None, None], torch.nan, grad))
        return sound(self, logits, labels)

    TokenLoss.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        TokenLoss.__call__ = sound  # type: ignore[method-assign]


def run(
    sections: dict[str, dict[str, Any]],
    folder: str,
    *,
    steps: int,
    kind: str | None = "logits",
    order: list[int] | None = None,
) -> dict[str, Any]:
    """What a rank does: the whole loop; gives back how it ended and where it stands.

    Args:
        kind: what the bad row spoils; None: nothing.
        order: eighths of the rows in the order in which a clean run reads them.
    """
    training = {**sections.get("training", {}), "steps": steps}
    options = {"checkpoint": {"enable": True, "interval": 2}, "metrics": {"log_freq": 1}, **sections}
    config = tiny.config({**options, "training": training}, folder)
    Path(folder).mkdir(exist_ok=True)
    trainer = tiny.make_trainer(config, Rows(bad=kind is not None, steps=order))
    error = None
    with faulty_loss(kind or "loss"):
        try:
            trainer.train(StopRequest())
        except RuntimeError as caught:
            error = (type(caught).__name__, str(caught))
    moments = {named.fqn: float(trainer.optimizer.state[named.parameter]["step"]) for named in trainer.model.parameters}
    return {
        "error": error,
        "progress": vars(trainer.progress),
        "last": tiny.local_pieces(trainer, grads=False),
        "updates": set(moments.values()),
        "skipped": trainer.policy.count,
    }


def finite(pieces: list[Any]) -> bool:
    return all(np.isfinite(values).all() for _fqn, _shape, _box, values in pieces)
