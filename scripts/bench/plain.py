"""The limit: the same model and steps in the plain PyTorch loop that one would write by hand, on one process.

Forward, mean cross-entropy, backward, `clip_grad_norm_`, fused AdamW in two groups, a learning-rate schedule, and
the loss read every tenth step. No counting of tokens, no mixed precision, no metrics, no checkpoints, no signals.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from measured import Clock, RandomRows

from titan.models import registry


class PlainLoop:
    """Float32 training of llama3 with `args` on rows of random ids."""

    def __init__(self, args: dict[str, int], *, rows: int, seq_len: int) -> None:
        spec = registry.get("llama3")
        torch.manual_seed(1)
        self.model = spec.build(spec.args(**args))
        for parameter in self.model.parameters():
            if parameter.dim() >= 2:
                torch.nn.init.normal_(parameter, std=0.02)
        matrices = [parameter for parameter in self.model.parameters() if parameter.dim() >= 2]
        vectors = [parameter for parameter in self.model.parameters() if parameter.dim() < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
            lr=1e-4,
            betas=(0.9, 0.95),
            fused=True,
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / 2))
        self._data, self._rows, self.steps, self.loss = RandomRows(seq_len), rows, 0, float("nan")

    def block(self, steps: int) -> Clock:
        """Takes `steps` steps; their time up to the end of the last one."""
        begun = Clock.now()
        for _ in range(steps):
            inputs, labels = map(torch.from_numpy, self._data.fetch(self.steps * self._rows, self._rows))
            loss = F.cross_entropy(self.model(inputs).flatten(0, 1), labels.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            self.steps += 1
            if self.steps % 10 == 0:
                self.loss = loss.item()
        return Clock.now() - begun
