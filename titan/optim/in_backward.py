"""`optimizer.early_step_in_backward`: each parameter is updated when its gradient is complete, which is freed at once.

The gradients of the model are never there together, which saves their memory: 4 bytes a parameter over the ranks that
share it. The price is that the norm is known when all weights have changed, so nothing can be clipped, and a step that
is not finite is seen after it was taken: it ends the run or rewinds it, before any save. Rules of the configuration
leave one backward a step: no accumulation and no pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from titan.optim.clipping import root_over_ranks, sum_of_squares
from titan.parallelisms.parameters import NamedParameter


class StepInBackward:
    """Hangs the optimizer on the parameters, as hooks that autograd, or FSDP2 after its reduction, calls.

    Args:
        parameters: of this rank.
        optimizer: over them; its learning rate must be that of the step before the backward begins.
        device: where the norm is summed.
    """

    def __init__(
        self, parameters: Sequence[NamedParameter], optimizer: torch.optim.Optimizer, device: torch.device
    ) -> None:
        self._optimizer, self._device = optimizer, device
        self._squares = torch.zeros((), device=device)
        for named in parameters:
            update = partial(self._update, named)
            named.parameter.register_post_accumulate_grad_hook(update)  # type: ignore[no-untyped-call]

    def _update(self, named: NamedParameter, parameter: Tensor) -> None:
        self._squares = self._squares + sum_of_squares([named], self._device)
        self._optimizer.step()  # of this parameter alone: no other has a gradient
        parameter.grad = None

    def norm(self, loss: Tensor) -> Tensor:
        """As `global_norm` gives it, of the gradients since the last call. A collective call."""
        squares, self._squares = self._squares, torch.zeros((), device=self._device)
        return root_over_ranks(squares, loss)
