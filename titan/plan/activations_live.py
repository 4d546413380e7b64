"""Bytes alive, by what they are for, while modules run on fake tensors: no memory, and the operators of a real run.

A storage counts from the operator that makes it until nothing refers to it any more, autograd's graph included, so
that saved activations, temporaries and gradients need no formulas. What an operator uses within itself is not seen. The
run is cut into segments, such as one block's forward; each keeps what it added and the highest point on the way, both
relative to its beginning, from which a whole step is composed.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from titan.parallelisms.context import allgather, ring
from titan.parallelisms.context.operators import process_group
from titan.plan.communication_counting import collective
from titan.plan.facts import Operation
from titan.plan.work import Kernels, Work

Call = tuple[str, Operation, int]
"""(name of the process group, operation, bytes of the whole)."""

_titan = torch.ops.titan
# What the operators of context parallelism do inside, which their fake versions hide: memory and collectives.
_BODIES: dict[Any, Any] = {
    _titan.allgather_attention.default: allgather.forward,
    _titan.allgather_attention_backward.default: allgather.backward,
    _titan.ring_attention.default: ring.forward,
    _titan.ring_attention_backward.default: ring.backward,
}


@dataclass
class Segment:
    """A part of a run. Bytes by category, relative to its beginning.

    Attributes:
        added: what is alive at its end.
        peak: what is alive at its highest point; at least `{}`, its beginning.
        calls: the collectives in it.
        work: FLOPs and bytes moved.
    """

    added: Counter[str] = field(default_factory=Counter)
    peak: Counter[str] = field(default_factory=Counter)
    calls: list[Call] = field(default_factory=list)
    work: Work = field(default_factory=Work)


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every storage made while it is on, under the category of the moment (`category`).

    Enter it after a FakeTensorMode. `names` are those of the process groups by `group_name`.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.category = "other"
        self.segments: dict[str, Segment] = {}
        self._names = names
        self._owner: dict[int, tuple[str, int]] = {}  # storage to its category and bytes
        self._segment = Segment()
        self._kernels = Kernels()

    def open(self, name: str) -> None:
        """Ends the segment at hand and begins another. Of a forward piece the last run counts, which stands between
        others; of a backward piece the first."""
        while name.startswith(("backward", "input")) and name in self.segments:
            name += " again"
        self._segment = self.segments[name] = Segment()
        self._kernels.begin(self._segment.work, forward=name.startswith("forward"))

    def reassign(self, tensor: Tensor, category: str) -> None:
        """Counts a live tensor under another category from here on."""
        key = tensor.untyped_storage()._cdata
        if key in self._owner:
            before, size = self._owner[key]
            self._owner[key] = category, size
            self._segment.added[before] -= size
            self._add(category, size)

    def _add(self, category: str, size: int) -> None:
        segment = self._segment
        segment.added[category] += size
        if segment.added.total() > segment.peak.total():
            segment.peak = Counter(segment.added)

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._owner or size == 0:
            return
        self._owner[key] = self.category, size
        self._add(self.category, size)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        category, size = self._owner.pop(key)
        self._segment.added[category] -= size

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor's own handler comes back with local tensors
        if func in _BODIES:
            *tensors, group, headtail = args
            with self:
                return _BODIES[func](*tensors, process_group(group), headtail)
        if func is _titan.all_to_all.default:
            return self._all_to_all(*args)
        result = func(*args, **(kwargs or {}))
        if (found := collective(func, args, result)) is not None:
            group, operation, size = found
            self._segment.calls.append((self._names[group.group_name], operation, size))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._follow(leaf)
        self._kernels.see(func, args, result)
        return result

    def _all_to_all(self, x: Tensor, group: str) -> Tensor:
        self._segment.calls.append((self._names[group], "all_to_all", x.numel() * x.element_size()))
        received = torch.empty_like(x, memory_format=torch.contiguous_format)
        self._follow(received)
        return received
