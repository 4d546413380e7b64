"""Activation checkpointing of blocks (Chen et al., 2016, arXiv:1604.06174): none, full, every n-th block, per
operator, or what the compiler's partitioner keeps within a budget.

Per operator, the outputs of attention, of collectives and of every second matrix product are kept, and the rest is
computed again: what is dear to recompute is saved. Products of the shapes of chosen layers are always computed again
(a router, say, whose product is small). The numbers do not change, bit for bit; a test counts what runs twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch._functorch.config
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from titan.parallelisms.shards import local_tensor

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


Shapes = frozenset[tuple[int, ...]]


def _policy(
    products: dict[str, int], again: Shapes, ctx: Any, operator: Any, *args: Any, **_kwargs: Any
) -> CheckpointPolicy:
    if operator is torch.ops.aten.mm.default:
        if tuple(args[1].shape) in again:
            return CheckpointPolicy.PREFER_RECOMPUTE
        mode = "recompute" if ctx.is_recompute else "forward"
        products[mode] += 1
        return CheckpointPolicy.MUST_SAVE if products[mode] % 2 else CheckpointPolicy.PREFER_RECOMPUTE
    return CheckpointPolicy.MUST_SAVE if _always_saved(operator) else CheckpointPolicy.PREFER_RECOMPUTE


def _contexts(again: Shapes) -> tuple[Any, Any]:
    policy = partial(_policy, defaultdict(int), again)
    contexts: tuple[Any, Any] = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
    return contexts


def product_shapes(blocks: nn.ModuleDict, fqns: Sequence[str]) -> Shapes:
    """(in, out) of each linear layer of the blocks with one of `fqns` in its name, as its product sees the weight.

    Under tensor parallelism both the whole weight and this rank's part count: which of the two the product sees depends
    on where the layer's style unwraps it.
    """
    found = set()
    for name, module in blocks.named_modules():
        if not isinstance(module, nn.Linear) or not any(fqn in name for fqn in fqns):
            continue
        found.add(tuple(reversed(module.weight.shape)))
        found.add(tuple(reversed(local_tensor(module.weight).shape)))
    return frozenset(found)


def set_memory_budget(budget: float | None, pareto_folder: Path | None) -> None:
    """The partitioner's budget of saved activations, for all that this process compiles from here on.

    Args:
        budget: 0 (recompute all that can be) to 1 (the compiler's usual choice); None for 1.
        pareto_folder: where to draw what each budget would save and cost, an SVG a graph; None for nowhere. Needs
            matplotlib.
    """
    settings = torch._functorch.config
    settings.activation_memory_budget = 1.0 if budget is None else budget
    # The one such object in a block's graph is the DeviceMesh under tensor parallelism, which holds no tensor of it.
    settings.unsafe_treat_script_objects_as_zero_size = budget is not None
    settings.visualize_memory_budget_pareto = pareto_folder is not None
    if pareto_folder is not None:
        import matplotlib  # type: ignore[import-not-found, unused-ignore]

        matplotlib.use("Agg")  # torch shows each figure: no window shall open
        settings.memory_budget_pareto_dir = str(pareto_folder)


def apply_activation_checkpoint(
    blocks: nn.ModuleDict,
    *,
    mode: Literal["none", "full", "selective", "memory_budget"],
    selective_option: str = "2",
    recompute: Sequence[str] = (),
    preserve_rng_state: bool = True,
    early_stop: bool = False,
    determinism_check: str = "default",
    debug: bool = False,
) -> int:
    """Wraps blocks in place and returns how many.

    Args:
        blocks: layers under their global numbers, so that "every n-th" picks the same layers at every pipeline split.
        mode: `memory_budget` wraps nothing; the compiler does it (`set_memory_budget`).
        selective_option: `op`, or n as a string: the layers whose number is a multiple of n.
        recompute: with `op`, names of linear layers; products of their shapes are always computed again.
    """
    if mode in ("none", "memory_budget"):
        return 0
    every = 1 if mode == "full" or selective_option == "op" else int(selective_option)
    options: dict[str, Any] = dict(
        preserve_rng_state=preserve_rng_state, early_stop=early_stop, determinism_check=determinism_check, debug=debug
    )
    wrap: Callable[[nn.Module], nn.Module] = partial(checkpoint_wrapper, **options)
    if mode == "selective" and selective_option == "op":
        wrap = partial(checkpoint_wrapper, context_fn=partial(_contexts, product_shapes(blocks, recompute)), **options)
    chosen = [name for name in blocks if int(name) % every == 0]
    for name in chosen:
        blocks[name] = wrap(blocks[name])
    return len(chosen)
