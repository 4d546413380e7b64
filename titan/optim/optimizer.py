"""AdamW over all parameters of this rank, in two groups: matrices decay, norms and biases do not.

The group of a parameter follows from the rank of the full tensor, so it is the same in every layout and stage. The state follows the
dtype of the masters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from titan.config.schema import Optimizer
from titan.parallelisms.parameters import NamedParameter


def decays(named: NamedParameter) -> bool:
    """Whether weight decay applies: tensors of two dimensions and more (Loshchilov and Hutter, 2019, leave the choice open)."""
    return named.parameter.dim() >= 2


def build_optimizer(section: Optimizer, parameters: Sequence[NamedParameter]) -> torch.optim.Optimizer:
    """One optimizer over all of `parameters`, all DTensors or all plain; its learning rate is set each step by the schedule."""
    matrices = [named.parameter for named in parameters if decays(named)]
    others = [named.parameter for named in parameters if not decays(named)]
    groups = [
        {"params": matrices, "weight_decay": section.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    classes = {"AdamW": torch.optim.AdamW, "Adam": torch.optim.Adam}
    return classes[section.name](
        [group for group in groups if group["params"]],
        lr=section.lr,
        betas=(section.beta1, section.beta2),
        eps=section.eps,
        fused=section.implementation == "fused",
        foreach=section.implementation == "foreach",
    )
