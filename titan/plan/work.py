"""What a piece of the model has to do on one rank: FLOPs and bytes, counted while its real modules run on fake tensors.

`LiveBytes` runs a short model at a layout, cut into segments (an end or a block, forward or backward, recomputation
included), and shows each operator to `Kernels`. Matrix products and attention are counted in FLOPs; all other operators
only move memory, in two ways. Eager: each reads its inputs and writes its outputs. Fused, as a compiler does it:
operators between two products are one kernel, which reads what comes from outside and writes what lives on.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

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
    """

    products: list[Product] = field(default_factory=list)
    attention: float = 0.0
    eager: float = 0.0
    fused: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.products + other.products,
            self.attention + other.attention,
            self.eager + other.eager,
            self.fused + other.fused,
        )


class Kernels:
    """Sees the operators of a run and adds them to the `Work` at hand."""

    def __init__(self) -> None:
        self._work, self._forward = Work(), True
        self._weights: set[int] = set()
        self._read: dict[int, int] = {}  # storages that the kernel at hand reads, with their bytes
        self._made: dict[int, tuple[weakref.ref[Any], int]] = {}  # those that it made

    def begin(self, work: Work, *, forward: bool) -> None:
        """What follows counts in `work`; in a forward the right operand of a product is a weight."""
        self._end_kernel()
        self._work, self._forward = work, forward

    def see(self, func: Any, args: Sequence[Any], result: Any) -> None:
        """One operator, after it has run."""
        name = func.overloadpacket.__name__
        attention = name.startswith(_ATTENTION)
        if not attention and func.namespace != "aten":
            return  # a collective; or an operator of ours that LiveBytes opens up: what it does inside has been seen
        inputs = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if name in _PRODUCTS and outputs[0].shape[-1] > 1:  # a matrix times a vector moves memory
            self._end_kernel()
            self._product(inputs[-2], inputs[-1], outputs[0])
        elif attention:
            self._end_kernel()
            self._work.attention += _attention_flops(name, args)
        elif not (name in _FREE or _is_view(func, inputs, outputs)):
            self._moved(name, inputs, outputs)

    def _product(self, left: Tensor, right: Tensor, out: Tensor) -> None:
        if self._forward:
            self._weights.add(_key(right))
        of_weight = not {_key(left), _key(right)} & self._weights
        flops, size = 2.0 * out.numel() * left.shape[-1], sum(_bytes(tensor) for tensor in (left, right, out))
        narrowest = min(*left.shape[-2:], right.shape[-1])
        self._work.products.append(Product(flops, narrowest, size, left.numel() + right.numel(), of_weight))

    def _moved(self, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        if name == "embedding":
            inputs = [outputs[0]]  # the rows that are looked up, not the table
        self._work.eager += sum(map(_bytes, inputs)) + sum(map(_bytes, outputs))
        for tensor in inputs:
            if _key(tensor) not in self._made:
                self._read[_key(tensor)] = max(self._read.get(_key(tensor), 0), _bytes(tensor))
        for tensor in outputs:
            self._made[_key(tensor)] = weakref.ref(tensor.untyped_storage()), _bytes(tensor)

    def _end_kernel(self) -> None:
        alive = sum(size for storage, size in self._made.values() if storage() is not None)
        self._work.fused += sum(self._read.values()) + alive
        self._read.clear()
        self._made.clear()


def _is_view(func: Any, inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    if not inputs or not outputs:
        return not outputs
    return not func._schema.is_mutable and _key(outputs[0]) in [_key(tensor) for tensor in inputs]


def _attention_flops(name: str, args: Sequence[Any]) -> float:
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
