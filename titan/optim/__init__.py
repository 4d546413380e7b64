"""The optimizer, its learning rate, and the norm by which gradients are clipped."""

from titan.optim.clipping import clip_, global_norm
from titan.optim.in_backward import StepInBackward
from titan.optim.optimizer import build_optimizer
from titan.optim.schedule import LRSchedule, factor

__all__ = ["LRSchedule", "StepInBackward", "build_optimizer", "clip_", "factor", "global_norm"]
