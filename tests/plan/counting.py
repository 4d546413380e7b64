"""A hook on torch.distributed that knows nothing of the plan: it wraps the functions that the trainer, FSDP, the
pipeline and context parallelism call, and watches the functional collectives, which DTensor calls, as operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

Counts = Counter[tuple[str, str, int]]
"""(operation, sorted ranks of the group as text, bytes of one call) to calls."""


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _ranks(group: Any) -> list[int]:
    return sorted(dist.get_process_group_ranks(group if group is not None else dist.group.WORLD))


class _Functional(TorchDispatchMode):
    def __init__(self, count: Callable[[str, Any, Tensor], None]) -> None:
        super().__init__()
        self._count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if func.namespace == "_c10d_functional":
            group = dist.distributed_c10d._resolve_process_group
            match func._opname:
                case "all_gather_into_tensor":
                    self._count("all_gather", group(args[2]), result)
                case "reduce_scatter_tensor":
                    self._count("reduce_scatter", group(args[3]), args[0])
                case "all_reduce" | "all_reduce_":
                    self._count("all_reduce", group(args[2]), args[0])
                case "wait_tensor" | "_wrap_tensor_autograd":
                    pass
                case other:
                    raise AssertionError(f"a collective that the hook does not know: {other}")
        return result


@contextmanager
def counted() -> Iterator[Counts]:
    """Counts what this process sends while it is on; groups of one rank are left out."""
    counts: Counts = Counter()

    def count(operation: str, group: Any, tensor: Tensor) -> None:
        if len(ranks := _ranks(group)) > 1:
            counts[operation, ",".join(map(str, ranks)), _size(tensor)] += 1

    def wrap(name: str, seen: Callable[..., tuple[str, Tensor]]) -> None:
        original = originals[name] = getattr(dist, name)

        def hooked(*args: Any, **kwargs: Any) -> Any:
            operation, tensor = seen(*args, **kwargs)
            count(operation, kwargs.get("group"), tensor)
            return original(*args, **kwargs)

        setattr(dist, name, hooked)

    def send(group: Any, tensors: list[Tensor], *rest: Any) -> Any:
        count("send", group, tensors[0])
        return send_of_group(group, tensors, *rest)

    originals: dict[str, Any] = {}
    # A pipeline keeps the function isend itself, so the hook is below it; pybind binds the raw attribute only.
    raw_send, send_of_group = vars(dist.ProcessGroup)["send"], dist.ProcessGroup.send
    wrap("all_gather_single", lambda output_tensor, *_, **__: ("all_gather", output_tensor))
    wrap("reduce_scatter_single", _reduce_scatter_input)
    wrap("all_reduce", lambda tensor, *_, **__: ("all_reduce", tensor))
    wrap("all_to_all_single", lambda output, *_, **__: ("all_to_all", output))
    dist.ProcessGroup.send = send
    try:
        with _Functional(count):
            yield counts
    finally:
        dist.ProcessGroup.send = raw_send
        for name, original in originals.items():
            setattr(dist, name, original)


def _reduce_scatter_input(*args: Any, **kwargs: Any) -> tuple[str, Tensor]:
    return "reduce_scatter", kwargs["input"] if "input" in kwargs else args[1]
