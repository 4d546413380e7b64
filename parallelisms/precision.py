"""Mixed precision on one process: working copies in the compute dtype, masters as they are. The policy of FSDP2
without FSDP2.

FSDP2 on a single rank costs about three times the host time of plain modules, and autocast is another policy (it
keeps some operators in float32). So the modules hold working copies, refreshed from the masters once after each
optimizer step; the gradient of each backward is added to the master's in the master's dtype, as FSDP2's reduction
in float32 does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class WorkingCopies:
    """Swaps the parameters of `parts` for copies in `dtype`; the masters keep the values and receive the gradients.
    `masters` maps each copy to its master."""

    def __init__(self, parts: Sequence[nn.Module], dtype: torch.dtype) -> None:
        self._masters: list[Tensor] = []
        self._copies: list[Tensor] = []
        copies: dict[nn.Parameter, nn.Parameter] = {}
        for module in (module for part in parts for module in part.modules()):
            for name, master in list(module.named_parameters(recurse=False)):
                if master not in copies:  # a tied weight has one master and one copy
                    copies[master] = self._copy(master, dtype)
                module.register_parameter(name, copies[master])
        self.masters = {copy: master for master, copy in copies.items()}
        self.refresh()

    def _copy(self, master: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
        copy = nn.Parameter(torch.empty_like(master, dtype=dtype), requires_grad=master.requires_grad)

        def hand_over(copy: Tensor) -> None:
            if copy.grad is not None:
                grad = copy.grad.to(master.dtype)
                master.grad = grad if master.grad is None else master.grad.add_(grad)
                copy.grad = None
                # Autograd calls the hooks of the copy alone; those of the master are ours to call, as FSDP2 does.
                for hook in (getattr(master, "_post_accumulate_grad_hooks", None) or {}).values():
                    hook(master)

        copy.register_post_accumulate_grad_hook(hand_over)  # type: ignore[no-untyped-call]
        self._masters.append(master)
        self._copies.append(copy)
        return copy

    @torch.no_grad()
    def refresh(self) -> None:
        """Copies the masters' values; call after every change of them."""
        torch._foreach_copy_(self._copies, self._masters)
