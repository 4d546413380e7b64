"""Rotary position embedding (Su et al., 2021, arXiv:2104.09864) with the frequency scaling of Llama 3.1.

The two halves of a head are the two coordinates of each rotation, the layout of the Hugging Face checkpoints.
Frequencies are
no buffer: nothing to materialise from the meta device, nothing to save. They are a function of the arguments,
computed on first use on each device. Angles, cosines and sines are float32 whatever the dtype of the model.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, each `(seq, head_dim / 2)` float32."""


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
        return angles.cos(), angles.sin()


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotates `(batch, heads, seq, head_dim)` by position; computed in float32, returned in the dtype of `x`."""
    cos, sin = rotation
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).type_as(x)
