"""AdamW or Adam over all parameters of this rank, in two groups: matrices decay, norms and biases do not.

The group of a parameter follows from the number of dimensions of the full tensor, so it is the same in every layout
and stage. Moments have the dtype of the masters. The learning rate is a float, set anew each step by the schedule;
hyper-parameters come from the configuration, never from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor

from titan.config.schema import Optimizer
from titan.parallelisms.parameters import NamedParameter

_CLASSES = {"AdamW": torch.optim.AdamW, "Adam": torch.optim.Adam}


def decays(named: NamedParameter) -> bool:
    """Whether weight decay applies: to tensors of two dimensions and more, the convention since GPT-3 and Llama."""
    return named.parameter.dim() >= 2


def build_optimizer(section: Optimizer, parameters: Sequence[NamedParameter]) -> torch.optim.Optimizer:
    """One optimizer over `parameters`, uncounted copies of tied ones included: both copies take the same steps.

    A rank without parameters gets an optimizer whose step does nothing.

    Raises:
        ValueError: some parameters are DTensors and some are plain, which the fused step refuses late and in other
            words.
    """
    plain = [named.fqn for named in parameters if not isinstance(named.parameter, DTensor)]
    if plain and len(plain) < len(parameters):
        raise ValueError(f"{', '.join(plain)}: plain among DTensors; all parameters of a rank must be of one kind")
    groups = [
        {
            "params": [named.parameter for named in parameters if decays(named) is decay],
            "weight_decay": section.weight_decay if decay else 0.0,
        }
        for decay in (True, False)
    ]
    optimizer: torch.optim.Optimizer = _CLASSES[section.name](
        groups,
        lr=section.lr,
        betas=(section.beta1, section.beta2),
        eps=section.eps,
        fused=section.implementation == "fused",
        foreach=section.implementation == "foreach",
    )
    return optimizer
