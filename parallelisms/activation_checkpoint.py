"""Activation checkpointing of blocks (Chen et al., 2016, arXiv:1604.06174): none, full, every n-th block, or per
operator.

Per operator, the outputs of attention, of collectives and of every second matrix product are kept, and the rest is
computed again: what is dear to recompute is saved. The numbers do not change, bit for bit; a test counts what runs
twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    "_flash_attention_forward",
    "_efficient_attention_forward",
)
_COLLECTIVES = ("reduce_scatter_tensor", "all_gather_into_tensor", "all_reduce", "all_to_all_single")


def _always_saved(operator: Any) -> bool:
    namespace = getattr(operator, "namespace", "")
    name = getattr(getattr(operator, "overloadpacket", operator), "__name__", "")
    if namespace == "titan":  # context-parallel attention: it communicates
        return True
    return (namespace == "aten" and name in _ATTENTION) or (namespace == "_c10d_functional" and name in _COLLECTIVES)


def _policy(products: dict[str, int], ctx: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    if operator is torch.ops.aten.mm.default:
        mode = "recompute" if ctx.is_recompute else "forward"
        products[mode] += 1
        return CheckpointPolicy.MUST_SAVE if products[mode] % 2 else CheckpointPolicy.PREFER_RECOMPUTE
    return CheckpointPolicy.MUST_SAVE if _always_saved(operator) else CheckpointPolicy.PREFER_RECOMPUTE


def _contexts() -> tuple[Any, Any]:
    policy = partial(_policy, defaultdict(int))
    contexts: tuple[Any, Any] = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
    return contexts


def apply_activation_checkpoint(
    blocks: nn.ModuleDict,
    *,
    mode: Literal["none", "full", "selective"],
    selective_option: str = "2",
    preserve_rng_state: bool = True,
    early_stop: bool = False,
    determinism_check: str = "default",
    debug: bool = False,
) -> int:
    """Wraps blocks in place and returns how many.

    Args:
        blocks: layers under their global numbers, so that "every n-th" picks the same layers at every pipeline split.
        selective_option: `op`, or n as a string: the layers whose number is a multiple of n.
    """
    if mode == "none":
        return 0
    every = 1 if mode == "full" or selective_option == "op" else int(selective_option)
    options: dict[str, Any] = dict(
        preserve_rng_state=preserve_rng_state, early_stop=early_stop, determinism_check=determinism_check, debug=debug
    )
    wrap: Callable[[nn.Module], nn.Module] = partial(checkpoint_wrapper, **options)
    if mode == "selective" and selective_option == "op":
        wrap = partial(checkpoint_wrapper, context_fn=_contexts, **options)
    chosen = [name for name in blocks if int(name) % every == 0]
    for name in chosen:
        blocks[name] = wrap(blocks[name])
    return len(chosen)
