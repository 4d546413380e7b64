"""Cross-entropy summed over this rank's tokens and divided by the valid tokens of the whole global batch.

Every valid token weighs the same in every layout: the divisor is counted once a step over all ranks, and all later
reductions are sums. With the vocabulary sharded over tp, each rank keeps its columns of the logits; three small
all-reduces (maximum, sum of exponentials, logit of the target) replace the gathering of `(tokens, vocab)`. Losses
and probabilities are float32.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

IGNORE = -100
"""Label of a position at which no loss is taken."""


class _VocabParallelCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, start: int, group: dist.ProcessGroup) -> Tensor:
        top = logits.amax(dim=-1)  # (tokens,)
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        exponentials = (logits - top[:, None]).exp_()  # (tokens, vocab / tp)
        column = targets - start
        mine = (column >= 0) & (column < logits.shape[1])
        column = column.clamp(0, logits.shape[1] - 1)
        target_logit = torch.where(mine, logits.gather(1, column[:, None]).squeeze(1) - top, 0.0)
        sums = torch.stack((exponentials.sum(dim=-1), target_logit))  # (2, tokens)
        dist.all_reduce(sums, group=group)
        valid = targets != IGNORE
        ctx.save_for_backward(exponentials.div_(sums[0][:, None]), column, mine & valid, valid)
        return torch.where(valid, sums[0].log() - sums[1], 0.0).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        probabilities, column, mine, valid = ctx.saved_tensors
        logits_grad = probabilities * (grad * valid)[:, None]
        logits_grad.scatter_add_(1, column[:, None], (-grad * mine)[:, None])
        return logits_grad, None, None, None


class TokenLoss:
    """Callable as a pipeline's loss function: `(logits, labels) -> scalar`, this rank's share of the step's mean loss.

    Args:
        vocab_shard: (group, first column) of this rank where the logits' last dimension is sharded over tp, else None.
    """

    def __init__(self, vocab_shard: tuple[dist.ProcessGroup, int] | None = None) -> None:
        self._vocab_shard = vocab_shard
        self.valid_tokens: Tensor | None = None
        self._summed = _summed_cross_entropy

    def compile(self, backend: str) -> None:
        """Compiles the cross-entropy; under a sharded vocabulary it stays eager, since its collectives do."""
        if self._vocab_shard is None:
            self._summed = torch.compile(_summed_cross_entropy, backend=backend, fullgraph=True)

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """logits `(batch, seq, vocab)` (or this rank's columns) in any float dtype, labels `(batch, seq)` int64."""
        if self.valid_tokens is None:
            raise RuntimeError(
                "set valid_tokens, the count over the whole global batch, before the first forward of a step"
            )
        if self._vocab_shard is None:
            return self._summed(logits, labels) / self.valid_tokens
        group, start = self._vocab_shard
        total: Tensor = _VocabParallelCrossEntropy.apply(  # type: ignore[no-untyped-call]
            logits.flatten(0, 1).float(), labels.flatten(), start, group
        )
        return total / self.valid_tokens


def _summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE, reduction="sum")
