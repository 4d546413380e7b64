"""The seed of a run and deterministic algorithms.

Without `debug.seed` one is drawn on rank 0 and broadcast: weights and data order are functions of it on every rank, so
that two ranks with two seeds would train two models into one. It is logged and saved, so that the run can be repeated.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from titan.config.schema_run import Debug
    from titan.runtime.distributed import World


def agree_on_seed(seed: int | None, world: World) -> int:
    """`seed`, or where it is None the same new number on every rank (a collective then), 0 <= n < 2**63."""
    if seed is not None:
        return seed
    drawn = secrets.randbits(63)
    if world.world_size == 1:
        return drawn
    import torch
    import torch.distributed as dist

    shared = torch.tensor(drawn, dtype=torch.int64, device=world.device)
    dist.broadcast(shared, src=0)
    return int(shared)


def set_determinism(debug: Debug) -> None:
    """Deterministic algorithms where the config asks for them; before the first kernel, since cuBLAS reads its
    workspace setting once (https://docs.pytorch.org/docs/stable/notes/randomness.html)."""
    if not debug.deterministic:
        return
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=debug.deterministic_warn_only)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
