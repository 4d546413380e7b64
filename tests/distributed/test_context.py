"""Context parallelism on real ranks against SDPA on one device: numbers, causality, bytes, memory.

Each rank computes the single-device result too and compares its part of it: out and gradients of q, k, v, relative to
the norm. One call of `run_ranks` holds many cases, since starting the ranks is what costs.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.distributed.ranks import run_ranks
from titan.models.layers.attention import Attend
from titan.parallelisms.context import (
    Method,
    allgather,
    attend_impl,
    local_positions,
    ring,
    shard_sequence,
)
from titan.parallelisms.context.order import LoadBalancer

METHODS: tuple[Method, ...] = ("allgather", "alltoall", "ulysses")
BALANCERS: tuple[LoadBalancer, ...] = ("headtail", None)
HEADS = ((4, 4), (4, 2), (4, 1), (2, 2), (2, 1))
SEQ, HEAD_DIM = 48, 16

Four = tuple[Tensor, Tensor, Tensor, Tensor]


def draw(heads: int, kv_heads: int, seed: int = 0) -> Four:
    """q, k, v and the upstream gradient of the whole sequence."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v, grad = (torch.randn(2, h, SEQ, HEAD_DIM, generator=generator) for h in (heads, kv_heads, kv_heads, heads))
    return q, k, v, grad


def differentiate(attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> Four:
    """out, dq, dk, dv."""
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = attend(*inputs)
    return out.detach(), *torch.autograd.grad(out, inputs, grad)


def parallel(method: Method, balancer: LoadBalancer, group: dist.ProcessGroup, whole: Four) -> Four:
    attend = attend_impl(method, group, balancer)
    q, k, v, grad = (shard_sequence(x, 2, group.size(), group.rank(), balancer) for x in whole)
    return differentiate(attend, q, k, v, grad)


def mine(whole: Four, group: dist.ProcessGroup, balancer: LoadBalancer) -> tuple[Tensor, ...]:
    return tuple(shard_sequence(x, 2, group.size(), group.rank(), balancer) for x in whole)


def off(results: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    """The largest norm-relative difference; NaN counts as infinite."""
    ratios = [
        ((a.double() - b.double()).norm() / b.double().norm()).nan_to_num(torch.inf)
        for a, b in zip(results, expected, strict=True)
    ]
    return max(ratio.item() for ratio in ratios)


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def parity() -> dict[str, tuple[float, float]]:
    """Case to (difference, bound)."""
    group, found = world(), {}
    cp = group.size()
    for method, balancer, (heads, kv_heads) in itertools.product(METHODS, BALANCERS, HEADS):
        if method == "ulysses" and heads % cp:
            continue
        case = f"{method} {balancer} {heads}/{kv_heads}"
        whole = draw(heads, kv_heads)
        expected = differentiate(Attend(), *whole)
        found[case] = off(parallel(method, balancer, group, whole), mine(expected, group, balancer)), 1e-5

        # In bf16 against fp32 on the same rounded inputs, with the error of one device in bf16 as the measure.
        low: Any = tuple(x.bfloat16() for x in whole)
        exact = mine(differentiate(Attend(), *(x.float() for x in low)), group, balancer)
        noise = off(mine(differentiate(Attend(), *low), group, balancer), exact)
        results = parallel(method, balancer, group, low)
        assert {x.dtype for x in results} == {torch.bfloat16}
        found[case + " bf16"] = off(results, exact), 4 * noise

        # Nothing comes from upstream on the first half: without balancing, some ranks have no loss at all.
        silent = (*whole[:3], whole[3] * (torch.arange(SEQ) >= SEQ // 2)[:, None])
        expected = differentiate(Attend(), *silent)
        results = parallel(method, balancer, group, silent)
        gathered = [torch.stack(_all(x, group)) for x in results]
        wanted = [torch.stack(_all(x.contiguous(), group)) for x in mine(expected, group, balancer)]
        found[case + " silent"] = off(tuple(gathered), tuple(wanted)), 1e-5
    return found


def _all(x: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    parts = [torch.empty_like(x.contiguous()) for _ in range(group.size())]
    dist.all_gather(parts, x.contiguous(), group=group)
    return parts


@pytest.mark.parametrize("cp", [2, 4])
def test_every_method_matches_one_device(cp: int) -> None:
    per_rank = run_ranks(parity, cp)
    assert len(per_rank[0]) == 3 * len(BALANCERS) * (2 * len(HEADS) + (5 if cp == 2 else 3))
    wrong = [
        (rank, case, *pair)
        for rank, found in enumerate(per_rank)
        for case, pair in found.items()
        if not pair[0] <= pair[1]
    ]
    assert wrong == []


def strided() -> dict[str, float]:
    """Ranks {0, 2} and {1, 3} of four: two cp groups with data of their own, as under tensor or data parallelism."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    which = dist.get_rank() % 2
    group = groups[which]
    found = {}
    for method, balancer in itertools.product(METHODS, BALANCERS):
        whole = draw(4, 2, seed=which)
        expected = mine(differentiate(Attend(), *whole), group, balancer)
        found[f"{method} {balancer}"] = off(parallel(method, balancer, group, whole), expected)
    return found


def causality() -> dict[str, bool]:
    """Change the last quarter of the tokens: what the earlier ones get and send back must not change by a bit."""
    group, found, start = world(), {}, SEQ * 3 // 4
    for method, balancer in itertools.product(METHODS, BALANCERS):
        early = local_positions(SEQ, group.size(), group.rank(), balancer) < start
        q, k, v, grad = draw(4, 2)
        late = torch.arange(SEQ)[:, None] >= start
        grad = grad.masked_fill(late, 0.0)
        changed = [torch.where(late, x * -2 + 1, x) for x in (q, k, v)]
        before = parallel(method, balancer, group, (q, k, v, grad))
        after = parallel(method, balancer, group, (changed[0], changed[1], changed[2], grad))
        case = f"{method} {balancer}"
        found[case] = all(torch.equal(a[:, :, early], b[:, :, early]) for a, b in zip(before, after, strict=True))
        found[case + " late"] = not any(x[:, :, ~early].any() for x in after[1:])
    return found


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors made while it is on, and the most that were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self._seen:
                self._made(tensor.untyped_storage())
        return result

    def ignore(self, *tensors: Tensor) -> None:
        self._seen.update(x.untyped_storage()._cdata for x in tensors)

    def _made(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


@contextmanager
def sent_bytes() -> Iterator[Counter[str]]:
    """Bytes handed to point-to-point sends and to the all-gather while it is open."""
    count: Counter[str] = Counter()
    exchange, gather = dist.batch_isend_irecv, dist.all_gather_single

    def counted_exchange(ops: list[dist.P2POp]) -> Any:
        for op in ops:
            if op.op is dist.isend:
                count["sent"] += op.tensor.nbytes
                count["sends"] += 1
        return exchange(ops)

    def counted_gather(output: Tensor, tensor: Tensor, **kwargs: Any) -> Any:
        count["gathered"] += output.nbytes
        return gather(output, tensor, **kwargs)

    dist.batch_isend_irecv, dist.all_gather_single = counted_exchange, counted_gather
    try:
        yield count
    finally:
        dist.batch_isend_irecv, dist.all_gather_single = exchange, gather


def in_units(count: Counter[str], unit: int) -> dict[str, float]:
    return {key: value if key == "sends" else value / unit for key, value in count.items()}


def traffic() -> dict[str, Any]:
    """What the ring sends, and the peak memory of each method at cp 2 and 4 with the same number of local tokens."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    found: dict[str, Any] = {}
    for group in (pairs[dist.get_rank() // 2], world()):
        cp = group.size()
        generator = torch.Generator().manual_seed(dist.get_rank())
        q, grad = (torch.randn(1, 4, 256, 16, generator=generator) for _ in range(2))
        k, v = (torch.randn(1, 4, 256, 16, generator=generator) for _ in range(2))
        unit = k.nbytes + v.nbytes
        for name, method in (("ring", ring), ("allgather", allgather)):
            with LiveBytes() as memory, sent_bytes() as count:
                memory.ignore(q, k, v, grad)
                out, logsumexp = method.forward(q, k, v, group, True)
                found[f"{name} {cp} forward peak"] = memory.peak / unit
            found[f"{name} {cp} forward traffic"] = in_units(count, unit)
            with LiveBytes() as memory, sent_bytes() as count:
                memory.ignore(q, k, v, grad, out, logsumexp)
                gradients = method.backward(grad, q, k, v, out, logsumexp, group, True)
                found[f"{name} {cp} backward peak"] = memory.peak / unit
            found[f"{name} {cp} backward traffic"] = in_units(count, unit)
            del out, logsumexp, gradients
    return found


def on_four_ranks() -> dict[str, Any]:
    return {"strided": strided(), "causality": causality(), "traffic": traffic(), "refusals": refusals()}


def refusals() -> list[str]:
    """What each impossible call says; none may leave a rank waiting for the others."""
    messages = []
    for method, heads, tokens in (("ulysses", 2, 12), ("ulysses", 4, 11), ("allgather", 4, 11), ("alltoall", 4, 11)):
        part = torch.zeros(1, heads, tokens, HEAD_DIM)
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            attend_impl(method, world(), "headtail")(part, part, part)  # type: ignore[arg-type]
        messages.append(str(caught.value))
    with pytest.raises(ValueError, match="pigeon") as caught:
        attend_impl("pigeon", world(), None)  # type: ignore[arg-type]
    return [*messages, str(caught.value)]


@pytest.fixture(scope="module")
def four_ranks() -> list[dict[str, Any]]:
    return run_ranks(on_four_ranks, 4)


def test_groups_may_be_any_ranks_of_the_world(four_ranks: list[dict[str, Any]]) -> None:
    assert [case for found in four_ranks for case, ratio in found["strided"].items() if not ratio <= 1e-5] == []


def test_late_tokens_do_not_reach_early_ones(four_ranks: list[dict[str, Any]]) -> None:
    assert [case for found in four_ranks for case, holds in found["causality"].items() if not holds] == []


def test_impossible_calls_are_refused_with_numbers(four_ranks: list[dict[str, Any]]) -> None:
    odd = "headtail load balancing needs an even number of tokens a rank, not 11"
    for found in four_ranks:
        heads, *others, method = found["refusals"]
        assert "needs heads / tensor_parallel_degree to divide by context_parallel_degree (2 by 4)" in heads
        assert others == [odd] * 3
        assert "must be allgather, alltoall (ring) or ulysses" in method


@pytest.mark.parametrize("cp", [2, 4])
def test_the_ring_sends_each_peers_keys_and_values_once(four_ranks: list[dict[str, Any]], cp: int) -> None:
    for found in four_ranks:  # in units of a rank's K and V in fp32
        traffic = found["traffic"]
        assert traffic[f"ring {cp} forward traffic"] == {"sends": cp - 1, "sent": cp - 1}
        assert traffic[f"ring {cp} backward traffic"] == {"sends": 2 * (cp - 1), "sent": 2 * (cp - 1)}
        assert traffic[f"allgather {cp} forward traffic"] == {"gathered": cp}


def test_the_ring_holds_two_peers_at_most(four_ranks: list[dict[str, Any]]) -> None:
    """In units of a rank's K and V; with it come the output and its sums, under 2 forward and 6 backward."""
    for found in four_ranks:
        peak = {name: value for name, value in found["traffic"].items() if name.endswith("peak")}
        assert peak["ring 4 forward peak"] < 4
        assert peak["ring 4 forward peak"] - peak["ring 2 forward peak"] < 1
        assert peak["ring 4 backward peak"] < 8
        for way in ("forward", "backward"):  # the measure sees what it is meant to see
            assert peak[f"allgather 4 {way} peak"] - peak[f"allgather 2 {way} peak"] > 2
            assert peak[f"allgather 4 {way} peak"] > peak[f"ring 4 {way} peak"]
