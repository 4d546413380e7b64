"""Rotary position embedding (Su et al., 2021, arXiv:2104.09864) with the frequency scaling of Llama 3.1.

The two halves of a head are the two coordinates of each rotation, the layout of the Hugging Face checkpoints.
Frequencies are
no buffer: nothing to materialise from the meta device, nothing to save. They are a function of the arguments,
computed on first use on each device. Angles, cosines and sines are float32 whatever the dtype of the model.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]
"""Cosines, and sines with a minus in the first half, each `(seq, head_dim)` float32: the two halves side by side."""


class Scaling(Protocol):
    """What `Rope` reads of a model's scaling arguments."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_seq_len: int


def frequencies(head_dim: int, theta: float, scaling: Scaling | None, device: torch.device) -> Tensor:
    """Angle a position, `(head_dim / 2,)` float32. Low frequencies are divided by the factor, those between are
    blended.
    """
    freqs = 1.0 / theta ** (torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    if scaling is None:
        return freqs
    wavelength = 2 * math.pi / freqs
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = ((scaling.original_max_seq_len / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    return blend * freqs + (1.0 - blend) * freqs / scaling.factor


class Rope:
    """Turns positions into rotations; one a model, shared by its layers."""

    def __init__(self, head_dim: int, theta: float, scaling: Scaling | None) -> None:
        self._arguments = head_dim, theta, scaling
        self._frequencies: Tensor | None = None

    def __call__(self, positions: Tensor) -> Rotation:
        """Rotation of each of `positions`, `(seq,)` int64, global in the sequence."""
        if self._frequencies is None or self._frequencies.device != positions.device:
            self._frequencies = frequencies(*self._arguments, device=positions.device)
        angles = torch.outer(positions.float(), self._frequencies)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


class _Rotate(torch.autograd.Function):
    """Its own backward, the opposite rotation: that of the single operators takes half as long again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(grad, cos, -sin), None, None


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotates `(batch, heads, seq, head_dim)` by position; computed in float32, returned in the dtype of `x`."""
    turned: Tensor = _Rotate.apply(x, *rotation)  # type: ignore[no-untyped-call]
    return turned


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    return torch.addcmul(wide * cos, torch.cat((second, first), dim=-1), sin).type_as(x)
