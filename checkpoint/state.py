"""What is saved, and under which key: `model.<fqn>` and `optimizer.<fqn>.<name>`, tensors only.

Hyper-parameters (lr, weight decay, betas) are not among them: they come from the configuration, and a checkpoint
that carried them would silently win. Optimizer state exists only after a first step, so it is created before it is
filled: a step with lr 0 and gradient 0, one parameter at a time, so that no second set of gradients is ever in
memory. That way it works for any torch optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from titan.checkpoint.pieces import Piece, piece
from titan.parallelisms.parameters import NamedParameter

MODEL = "model."
OPTIMIZER = "optimizer."


def model_pieces(parameters: Sequence[NamedParameter]) -> list[Piece]:
    return [piece(MODEL + named.fqn, named.parameter) for named in parameters]


def optimizer_pieces(parameters: Sequence[NamedParameter], optimizer: Optimizer) -> list[Piece]:
    """State of each parameter that the optimizer updates; creates what is missing.

    Raises:
        TypeError: the optimizer holds a value that is not a tensor, which DCP would store as a pickle.
    """
    create_state(optimizer)
    pieces = []
    for named in parameters:
        for name, value in optimizer.state.get(named.parameter, {}).items():
            if value is None:
                continue
            key = f"{OPTIMIZER}{named.fqn}.{name}"
            if not isinstance(value, Tensor):
                raise TypeError(f"{key} is a {type(value).__name__}: optimizer state must be tensors to be saved")
            pieces.append(piece(key, value))
    return pieces


def create_state(optimizer: Optimizer) -> None:
    """Gives every parameter that has no state yet a state of zeros; weights and gradients are as before."""
    every: list[nn.Parameter] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    missing = [parameter for parameter in every if parameter.requires_grad and not optimizer.state.get(parameter)]
    if not missing:
        return
    gradients = [parameter.grad for parameter in every]
    rates: list[Any] = [group["lr"] for group in optimizer.param_groups]
    for parameter in every:
        parameter.grad = None
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0
    try:
        for parameter in missing:
            weight = parameter.detach().clone()
            parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            parameter.grad = None
            # With lr 0 the weight is as it was under Adam; an optimizer that divides by a norm would leave NaN.
            with torch.no_grad():
                parameter.copy_(weight)
            for value in optimizer.state[parameter].values():
                if isinstance(value, Tensor):
                    value.zero_()
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for parameter, gradient in zip(every, gradients, strict=True):
            parameter.grad = gradient
