"""`torch.compile` of each block, fullgraph: equal blocks share one compilation, and collectives of FSDP stay outside.

Compiled before `fully_shard`, so that its hooks run around the compiled region. Schedules that split the backward
run each graph's backward twice, which AOTAutograd's donated buffers forbid (torch 2.13); they are switched off for
the process then.
"""

from __future__ import annotations

import torch
import torch._functorch.config
from torch import nn


class CompilerMissing(RuntimeError):
    """`compile.enable` on a machine that cannot build what inductor generates."""


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
    """Compiles each block in place."""
    if split_backward:
        torch._functorch.config.donated_buffer = False
    for block in blocks.values():
        block.compile(backend=backend, fullgraph=True)
