"""The token loss against `F.cross_entropy`, plain and with the vocabulary over two and three ranks.

The vocabulary is uneven, some labels are masked, once all of them are, and logits are large enough to overflow an
exponential that is not shifted by its maximum. The gradient is that of the mean over all valid tokens of the global
batch.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from tests.distributed.ranks import run_ranks
from titan.parallelisms.loss import IGNORE, TokenLoss

VOCAB, ROWS, SEQ, VALID = 251, 3, 16, 37
CASES = {"some masked": 1.0, "none masked": 1.0, "all masked": 1.0, "large logits": 300.0, "bfloat16": 1.0}


def example(case: str) -> tuple[Tensor, Tensor]:
    """Logits `(batch, seq, vocab)` and labels `(batch, seq)`."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(ROWS, SEQ, VOCAB, generator=generator) * CASES[case]
    labels = torch.randint(0, VOCAB, (ROWS, SEQ), generator=generator)
    labels[0, :3] = torch.tensor([0, VOCAB - 1, VOCAB // 2])  # the ends of the shards
    if case == "all masked":
        labels[:] = IGNORE
    elif case != "none masked":
        labels[0, 4:9] = IGNORE
        labels[2] = IGNORE
    return (logits.bfloat16() if case == "bfloat16" else logits), labels


def reference(case: str) -> tuple[Tensor, Tensor]:
    """Loss and gradient in float64."""
    logits, labels = example(case)
    whole = logits.double().requires_grad_()
    loss = F.cross_entropy(whole.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum") / VALID
    loss.backward()
    assert whole.grad is not None
    return loss.detach(), whole.grad


def on_rank(case: str) -> tuple[float, Tensor]:
    """Loss and gradient of this rank's columns, as torch.chunk cuts them."""
    logits, labels = example(case)
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = logits.chunk(size, dim=-1)[rank].clone().requires_grad_()
    assert dist.group.WORLD is not None
    loss = TokenLoss((dist.group.WORLD, rank * -(-VOCAB // size)))
    loss.valid_tokens = torch.tensor(VALID)
    value = loss(mine, labels)
    value.backward()
    assert mine.grad is not None
    assert mine.grad.dtype == mine.dtype
    return value.item(), mine.grad


def close(found: Tensor, wanted: Tensor, case: str) -> None:
    tolerance = 1e-2 if case == "bfloat16" else 2e-6  # the gradient itself is rounded to the dtype of the logits
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance / VALID)


@pytest.mark.quick
@pytest.mark.parametrize("case", CASES)
def test_plain_loss_is_the_sum_over_the_global_count(case: str) -> None:
    logits, labels = example(case)
    logits.requires_grad_()
    loss = TokenLoss()
    loss.valid_tokens = torch.tensor(VALID)
    value = loss(logits, labels)
    value.backward()
    wanted, grad = reference(case)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(wanted.item(), rel=2e-6)
    assert logits.grad is not None
    close(logits.grad, grad, case)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_a_sharded_vocabulary_gives_the_same_loss_and_gradient(case: str, size: int) -> None:
    results = run_ranks(on_rank, size, case)
    wanted, grad = reference(case)
    assert all(value == pytest.approx(wanted.item(), rel=2e-6) for value, _grad in results)
    widths = [part.shape[-1] for _value, part in results]
    assert widths == {2: [126, 125], 3: [84, 84, 83]}[size]
    found = torch.cat([part for _value, part in results], dim=-1)
    close(found, grad, case)
    assert case != "all masked" or (found == 0).all()


@pytest.mark.quick
def test_masked_positions_send_no_gradient() -> None:
    logits, labels = example("some masked")
    logits.requires_grad_()
    loss = TokenLoss()
    loss.valid_tokens = torch.tensor(VALID)
    loss(logits, labels).backward()
    assert logits.grad is not None
    assert (logits.grad[labels == IGNORE] == 0).all()
    assert (logits.grad[labels != IGNORE] != 0).any(-1).all()


@pytest.mark.quick
def test_a_loss_without_the_global_count_is_refused() -> None:
    with pytest.raises(RuntimeError, match="set valid_tokens"):
        TokenLoss()(*example("some masked"))
