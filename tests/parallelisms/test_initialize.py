"""Initial weights of one tensor: golden values, the declared distribution, slices that agree, bounded memory."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from titan.models.registry import InitRule
from titan.parallelisms.initialize import Stream, draw_, initialize, truncated_normal
from titan.parallelisms.parameters import NamedParameter

pytestmark = pytest.mark.quick
GOLDEN_WORDS = [3203264032266593382, 13457644738240273649, 4697063384114910194]
GOLDEN_VALUES = [0.03175133466720581, -0.01872825436294079, 0.010297977365553379]


def full(*shape: int, fqn: str = "w", seed: int = 7, std: float = 0.02, chunk: int = 1 << 20, dtype=torch.float32):
    tensor = torch.full(shape, math.nan, dtype=dtype)
    draw_(tensor, tuple(slice(0, size) for size in shape), tensor.shape, fqn=fqn, std=std, seed=seed, chunk=chunk)
    return tensor


def test_values_are_those_of_the_first_release():
    # A change of these numbers changes every run's initial weights: it needs a line in the release notes.
    assert Stream(42, "layers.0.attention.wq.weight").words(5, 3).tolist() == GOLDEN_WORDS
    values = full(3, 4, fqn="layers.0.attention.wq.weight", seed=42).flatten()[[0, 5, 11]]
    torch.testing.assert_close(values, torch.tensor(GOLDEN_VALUES), rtol=1e-7, atol=0.0)


def test_a_word_is_mapped_through_the_inverse_of_the_cut_normal():
    words = np.array([0, 2**63, 2**64 - 1, 2**62], dtype=np.uint64)
    inside = 0.5 * math.erfc(3 / math.sqrt(2)) + 0.25 * math.erf(3 / math.sqrt(2))
    quarter = torch.special.ndtri(torch.tensor(inside, dtype=torch.float64)).item()
    expected = torch.tensor([-3.0, 0.0, 3.0, quarter], dtype=torch.float64)
    torch.testing.assert_close(truncated_normal(words, 1.0), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("std", [0.02, 1.0])
def test_spread_and_cut_are_as_declared(std):
    values = full(1000, 1000, std=std).double()
    kept = math.erf(3 / math.sqrt(2))
    after_cut = std * math.sqrt(1 - 6 * math.exp(-4.5) / math.sqrt(2 * math.pi) / kept)
    assert values.std().item() == pytest.approx(after_cut, rel=3e-3)
    assert abs(values.mean().item()) < 4e-3 * std
    assert 2.99 * std < values.abs().max().item() <= 3 * std
    within_one = (values.abs() < std).double().mean().item()
    assert within_one == pytest.approx(math.erf(1 / math.sqrt(2)) / kept, abs=2e-3)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 64, 1009])
def test_chunks_do_not_show(chunk):
    assert torch.equal(full(23, 17, chunk=chunk), full(23, 17))
    part = torch.empty(9, 5)
    draw_(part, (slice(4, 13), slice(6, 11)), torch.Size((23, 17)), fqn="w", std=0.02, seed=7, chunk=chunk)
    assert torch.equal(part, full(23, 17)[4:13, 6:11])


@pytest.mark.parametrize(
    ("shape", "region"),
    [
        ((251, 8), (slice(126, 251), slice(0, 8))),
        ((251, 8), (slice(0, 251), slice(0, 4))),
        ((5, 9), (slice(1, 4), slice(8, 9))),
        ((5, 3), (slice(0, 5), slice(1, 2))),
        ((7,), (slice(3, 6),)),
        ((4, 6, 5), (slice(1, 3), slice(2, 5), slice(0, 5))),
        ((4, 6), (slice(4, 4), slice(0, 6))),
        ((), ()),
    ],
)
def test_a_slice_is_that_of_the_full_tensor(shape, region):
    part = torch.full([cut.stop - cut.start for cut in region], math.nan)
    draw_(part, region, torch.Size(shape), fqn="w", std=0.02, seed=7)
    assert torch.equal(part, full(*shape)[region])


def test_a_cut_beyond_dimension_one_is_refused():
    region = (slice(0, 2), slice(0, 2), slice(0, 1))
    with pytest.raises(ValueError, match="beyond dimension 1"):
        draw_(torch.empty(2, 2, 1), region, torch.Size((2, 2, 2)), fqn="w", std=1.0, seed=0)


def test_names_and_seeds_have_streams_of_their_own():
    drawn = [full(64, 64, fqn=fqn, seed=seed) for fqn, seed in (("a", 0), ("b", 0), ("a", 1), ("0/a", 0), ("a", 10))]
    for index, one in enumerate(drawn):
        for other in drawn[:index]:
            assert abs(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1].item()) < 0.06


def test_bfloat16_is_the_rounded_float64_value():
    assert torch.equal(full(40, 40, dtype=torch.bfloat16), full(40, 40, dtype=torch.float64).to(torch.bfloat16))


def test_rules_are_followed_by_name():
    rules = {"norm": InitRule("ones"), "bias": InitRule("zeros"), "w": InitRule("normal", 0.02)}
    parameters = [NamedParameter(fqn, nn.Parameter(torch.full((3, 4), math.nan))) for fqn in rules]
    initialize(parameters, rules.__getitem__, seed=7)
    norm, bias, weight = (named.parameter for named in parameters)
    assert norm.eq(1).all()
    assert bias.eq(0).all()
    assert torch.equal(weight.detach(), full(3, 4))
    assert all(named.parameter.requires_grad for named in parameters)


@pytest.mark.parametrize("region", [(slice(0, 2000), slice(0, 4096)), (slice(0, 4000), slice(2048, 4096))])
def test_memory_is_that_of_a_chunk(region):
    shape = torch.Size((4000, 4096))  # 131 MB in float64
    local = torch.empty([cut.stop - cut.start for cut in region])
    torch_peak = _Allocations()
    with torch_peak:
        draw_(local[:1], (slice(0, 1), region[1]), shape, fqn="w", std=1.0, seed=0)  # imports what it needs
        tracemalloc.start()
        draw_(local, region, shape, fqn="w", std=1.0, seed=0, chunk=1 << 16)
    numpy_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert numpy_peak < 4 * 8 * (1 << 16)
    assert torch_peak.largest <= 8 * (1 << 16)


class _Allocations(TorchDispatchMode):
    """The largest storage that an operation brings about, apart from the shard that is filled."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not function.is_view and result.dtype == torch.float64:
            self.largest = max(self.largest, result.untyped_storage().nbytes())
        return result
