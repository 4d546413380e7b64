"""What an operator sends: every collective of torch.distributed, as a dispatch mode sees it, real or fake.

Functional collectives, those of c10d, and point-to-point sends are seen; receives are not counted, since each is
another rank's send. A collective over one rank moves nothing and is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

# Private, and used here only: which argument of which collective is the process group.
from torch.distributed._tools.fake_collectives import CollectiveOp

from titan.plan.facts import Operation

_c10d, _functional = torch.ops.c10d, torch.ops._c10d_functional
_WHOLE: dict[Any, tuple[Operation, Callable[[Sequence[Any], Any], Any]]] = {
    # operator: (name, which tensor has the size of the whole)
    _functional.all_gather_into_tensor.default: ("all_gather", lambda _args, result: result),
    _functional.reduce_scatter_tensor.default: ("reduce_scatter", lambda args, _result: args[0]),
    _functional.all_reduce.default: ("all_reduce", lambda args, _result: args[0]),
    _functional.all_reduce_.default: ("all_reduce", lambda args, _result: args[0]),
    _functional.all_to_all_single.default: ("all_to_all", lambda args, _result: args[0]),
    _c10d._allgather_base_.default: ("all_gather", lambda args, _result: args[0]),
    _c10d._reduce_scatter_base_.default: ("reduce_scatter", lambda args, _result: args[1]),
    _c10d.allreduce_.default: ("all_reduce", lambda args, _result: args[0][0]),
    _c10d.alltoall_base_.default: ("all_to_all", lambda args, _result: args[1]),
    _c10d.broadcast_.default: ("broadcast", lambda args, _result: args[0][0]),
    _c10d.send.default: ("send", lambda args, _result: args[0][0]),
}


def collective(func: Any, args: Sequence[Any], result: Any) -> tuple[ProcessGroup, Operation, int] | None:
    """(group, operation, bytes of the whole) of an operator that communicates; None for any other, and over one rank.

    The whole is the output of an all-gather, the input of a reduce-scatter, else the tensor.
    """
    if func not in _WHOLE:
        return None
    operation, pick = _WHOLE[func]
    group: ProcessGroup = CollectiveOp.get_process_group(func, args)
    if group.size() == 1:
        return None
    tensor: Tensor = pick(args, result)
    return group, operation, tensor.numel() * tensor.element_size()
