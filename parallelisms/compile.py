"""`torch.compile` of each block, fullgraph: equal blocks share one compilation, and collectives of FSDP stay outside.

Compiled before `fully_shard`, so that its hooks run around the compiled region. Schedules that split the backward
run each graph's backward twice, which AOTAutograd's donated buffers forbid (torch 2.13); they are switched off for
the process then.
"""

from __future__ import annotations

import torch
import torch._functorch.config
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper


class CompilerMissing(RuntimeError):
    """`compile.enable` on a machine that cannot build what inductor generates."""

    exit_code = 2  # refused: the same start would fail again


def check_compiler(backend: str, device_type: str) -> None:
    """Raises CompilerMissing where inductor would fail for want of a C++ compiler, before any model exists."""
    if backend != "inductor" or device_type != "cpu":
        return
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError) as error:
        raise CompilerMissing(
            "compile.enable = true: inductor found no C++ compiler on this machine; install g++ or clang (or name one "
            "in CXX), "
            'set compile.backend = "aot_eager", or compile.enable = false'
        ) from error


def apply_compile(blocks: nn.ModuleDict, *, backend: str, split_backward: bool) -> None:
    """Compiles each block in place: inside a checkpoint of the whole block, around one that chooses by operator."""
    if split_backward:
        torch._functorch.config.donated_buffer = False
    for block in blocks.values():
        _region(block).compile(backend=backend, fullgraph=True)


def _region(block: nn.Module) -> nn.Module:
    # A block checkpointed as a whole within the graph fails under tensor parallelism (torch 2.13): AOTAutograd saves
    # the DeviceMesh among the tensors and asserts. Eager recomputation of a compiled block does the same work. A choice
    # by operator must be seen by the compiler, and saves the collectives, so that the mesh is not needed again.
    if isinstance(block, CheckpointWrapper) and "context_fn" not in block.checkpoint_fn.keywords:
        inner: nn.Module = block._checkpoint_wrapped_module
        return inner
    return block
