"""What a piece of the model has to do on one rank: FLOPs and bytes, counted while its real modules run on fake tensors.

`activations` runs a short model at a layout, cut into segments (an end or a block, forward or backward, recomputation
included); here the same run is watched for its operators. Matrix products and attention are counted in FLOPs; all other
operators only move memory, in two ways. Eager: each reads its inputs and writes its outputs. Fused, as a compiler
does it: operators between two products are one kernel, which reads what comes from outside and writes what lives on.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from titan.config.layout import Degrees
from titan.plan import activations
from titan.plan.activations import Setting
from titan.plan.activations_live import Call, LiveBytes
from titan.plan.parameters import fake_world

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_ATTENTION = ("_scaled_dot_product_", "cpu_attention")
"""Beginnings of the names of attention operators: torch's, and ours for long sequences on the CPU, which is causal."""
_FREE = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")


@dataclass(frozen=True)
class Product:
    """A matrix product: its FLOPs, its smallest dimension, bytes of operands and result, values of the operands,
    whether a gradient of a weight comes of it."""

    flops: float
    narrowest: int
    bytes: float
    operands: float
    of_weight: bool


@dataclass
class Work:
    """Of one rank, for one microbatch.

    Attributes:
        products: the matrix products.
        attention: FLOPs of attention, masked pairs not counted.
        eager, fused: bytes moved by all other operators, each by itself or fused between products.
        calls: collectives, with their dimension.
    """

    products: list[Product] = field(default_factory=list)
    attention: float = 0.0
    eager: float = 0.0
    fused: float = 0.0
    calls: list[Call] = field(default_factory=list)

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))


class WorkCounter(LiveBytes):  # type: ignore[no-untyped-call]
    """LiveBytes that also keeps a `Work` for each segment, in `work`."""

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__(names)
        self.work: dict[str, Work] = {"": Work()}
        self._at = ""
        self._weights: set[int] = set()
        self._read: dict[int, int] = {}  # storages that the kernel at hand reads, with their bytes
        self._made: dict[int, tuple[weakref.ref[Any], int]] = {}  # those that it made

    def open(self, name: str) -> None:
        self._end_kernel()
        super().open(name)
        # A piece that comes again has another name than the one given.
        self._at = next(key for key, segment in self.segments.items() if segment is self._segment)
        self.work[self._at] = Work(calls=self._segment.calls)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        name = func.overloadpacket.__name__
        # Other operators of ours were opened up by LiveBytes: what they do inside has been seen.
        if result is not NotImplemented and (func.namespace == "aten" or name.startswith(_ATTENTION)):
            self._see(name, func, args, result)
        return result

    def _see(self, name: str, func: Any, args: tuple[Any, ...], result: Any) -> None:
        inputs = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        work = self.work[self._at]
        if name in _PRODUCTS:
            self._end_kernel()
            self._product(work, inputs[-2:], outputs[0])
        elif name.startswith(_ATTENTION):
            self._end_kernel()
            work.attention += _attention_flops(name, args)
        elif not (name in _FREE or _is_view(func, inputs, outputs)):
            self._moved(name, work, inputs, outputs)

    def _product(self, work: Work, operands: list[Tensor], out: Tensor) -> None:
        left, right = operands
        if self._at.startswith("forward"):
            self._weights.add(_key(right))
        of_weight = not {_key(left), _key(right)} & self._weights
        flops, size = 2.0 * out.numel() * left.shape[-1], sum(_bytes(tensor) for tensor in (left, right, out))
        narrowest = min(*left.shape[-2:], right.shape[-1])
        work.products.append(Product(flops, narrowest, size, left.numel() + right.numel(), of_weight))

    def _moved(self, name: str, work: Work, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        if name == "embedding":
            inputs = [outputs[0]]  # the rows that are looked up, not the table
        work.eager += sum(map(_bytes, inputs)) + sum(map(_bytes, outputs))
        for tensor in inputs:
            if _key(tensor) not in self._made:
                self._read[_key(tensor)] = max(self._read.get(_key(tensor), 0), _bytes(tensor))
        for tensor in outputs:
            self._made[_key(tensor)] = weakref.ref(tensor.untyped_storage()), _bytes(tensor)

    def _end_kernel(self) -> None:
        alive = sum(size for storage, size in self._made.values() if storage() is not None)
        self.work[self._at].fused += sum(self._read.values()) + alive
        self._read.clear()
        self._made.clear()


def _is_view(func: Any, inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    if not inputs or not outputs:
        return not outputs
    return not func._schema.is_mutable and _key(outputs[0]) in [_key(tensor) for tensor in inputs]


def _attention_flops(name: str, args: tuple[Any, ...]) -> float:
    """Two products forward, five backward (the scores are computed again), half of the pairs under a causal mask."""
    backward = name.endswith("_backward")
    query, key = (args[1], args[2]) if backward else (args[0], args[1])
    causal = name.startswith("cpu_attention") or any(argument is True for argument in args)
    pairs = query.shape[-2] * key.shape[-2] * (0.5 if causal else 1.0)
    product: float = 2.0 * math.prod(query.shape[:-2]) * float(pairs) * query.shape[-1]
    return product * (5 if backward else 2)


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@lru_cache(maxsize=256)
def work_of(setting: Setting) -> dict[str, Work]:
    """The work of each segment; their names are those of `activations.Trace`."""
    with fake_world(Degrees(tp=setting.tp, cp=setting.cp)) as mesh:
        names: dict[str, str] = {}
        if mesh is not None:
            names = {mesh.tp.get_group().group_name: "tp"}
            if mesh.cp is not None:
                names[mesh.cp.get_group().group_name] = "cp"
        counter = WorkCounter(names)
        activations._Run(setting, mesh, counter, False).trace()
    return counter.work
