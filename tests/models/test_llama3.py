"""Llama 3 as published: parameter counts on the meta device and by formula, tied weights once, rotary frequencies by
their formula.
"""

from __future__ import annotations

import math

import pytest
import torch

from titan.models import registry
from titan.models.layers.rope import Rope, frequencies, rotate
from titan.models.llama3 import plan
from titan.models.llama3.args import FLAVORS, LlamaArgs, RoPEScaling

pytestmark = pytest.mark.quick
PUBLISHED = {
    "1B": 1_235_814_400,
    "3B": 3_212_749_824,
    "8B": 8_030_261_248,
    "70B": 70_553_706_496,
    "405B": 405_853_388_800,
}
SPEC = registry.get("llama3")


def with_vocab(args: LlamaArgs) -> LlamaArgs:
    return args if args.vocab_size is not None else args.model_copy(update={"vocab_size": 251})


def on_meta(args: LlamaArgs) -> torch.nn.Module:
    with torch.device("meta"):
        return SPEC.build(args)


@pytest.mark.parametrize("flavor", PUBLISHED)
def test_flavors_have_the_published_number_of_parameters(flavor: str) -> None:
    assert plan.parameter_count(FLAVORS[flavor]) == PUBLISHED[flavor]


@pytest.mark.parametrize("flavor", FLAVORS)
def test_the_formula_counts_what_the_modules_hold(flavor: str) -> None:
    args = with_vocab(FLAVORS[flavor])
    # parameters() lists a shared parameter once
    assert sum(parameter.numel() for parameter in on_meta(args).parameters()) == plan.parameter_count(args)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shape", [{"n_kv_heads": 2}, {"head_dim": 10}, {"hidden_dim": 96, "n_kv_heads": 1}])
def test_the_formula_holds_for_odd_shapes_and_tied_heads(shape: dict[str, int], tied: bool) -> None:
    args = LlamaArgs(dim=64, n_layers=3, n_heads=4, vocab_size=251, tie_embeddings=tied, **shape)
    model = on_meta(args)
    assert sum(parameter.numel() for parameter in model.parameters()) == plan.parameter_count(args)
    assert (model.get_parameter("output.weight") is model.get_parameter("tok_embeddings.weight")) == tied
    untied = args.model_copy(update={"tie_embeddings": False})
    assert plan.parameter_count(untied) - plan.parameter_count(args) == (251 * 64 if tied else 0)


@pytest.mark.parametrize("flavor", FLAVORS)
def test_every_parameter_has_an_initial_value_and_a_tensor_parallel_style(flavor: str) -> None:
    from titan.parallelisms.tensor import matches

    args = with_vocab(FLAVORS[flavor])
    for fqn, parameter in on_meta(args).named_parameters():
        rule = SPEC.init(args, fqn)
        assert rule.kind == ("ones" if parameter.ndim == 1 else "normal")
        assert any(matches(pattern, fqn.rpartition(".")[0]) for pattern in SPEC.tp_plan), fqn


def test_flops_are_six_a_matrix_parameter_and_twelve_a_head_dimension_and_position() -> None:
    args = FLAVORS["8B"]
    matrices = sum(
        p.numel() for n, p in on_meta(args).named_parameters() if p.ndim > 0 and n != "tok_embeddings.weight"
    )
    assert plan.flops_per_token(args, 8192) == 6 * matrices + 12 * 32 * 4096 * 8192
    tied = FLAVORS["1B"]
    assert plan.flops_per_token(tied, 0) == 6 * PUBLISHED["1B"], "the tied head multiplies all the same"


def test_no_vocabulary_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="vocab_size is None"):
        on_meta(FLAVORS["debugmodel"])


@pytest.mark.parametrize("scaling", [RoPEScaling(), RoPEScaling(factor=32.0)])
def test_scaled_frequencies_follow_the_formula_of_llama_3_1(scaling: RoPEScaling) -> None:
    """One frequency at a time, with the published three cases; float64."""
    found = frequencies(128, 500_000.0, scaling, torch.device("cpu"))
    wanted, cases = [], set()
    for i in range(64):
        frequency = 500_000.0 ** (-2 * i / 128)
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / 4.0:
            cases.add("kept")
        elif wavelength > 8192 / 1.0:
            cases.add("divided")
            frequency /= scaling.factor
        else:
            cases.add("blended")
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            frequency = (1 - smooth) * frequency / scaling.factor + smooth * frequency
        wanted.append(frequency)
    assert cases == {"kept", "divided", "blended"}
    torch.testing.assert_close(found.double(), torch.tensor(wanted, dtype=torch.float64), rtol=2e-6, atol=0)
    unscaled = frequencies(128, 500_000.0, None, torch.device("cpu"))
    assert (found / unscaled).min().item() == pytest.approx(1 / scaling.factor)


def test_a_rotation_is_a_complex_product_and_depends_on_distance_only() -> None:
    x = torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(0))
    rope = Rope(8, 10_000.0, None)
    turned = rotate(x, rope(torch.arange(5) + 3))
    angle = (torch.arange(5) + 3)[:, None] * 10_000.0 ** -(torch.arange(0, 8, 2) / 8)[None]
    wanted = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(turned, torch.cat((wanted.real, wanted.imag), -1))
    near, far = (rotate(x, rope(torch.arange(5) + start)) for start in (0, 1000))
    torch.testing.assert_close(near @ near.transpose(2, 3), far @ far.transpose(2, 3), rtol=1e-3, atol=1e-3)
    assert rotate(x.bfloat16(), rope(torch.arange(5))).dtype == torch.bfloat16


def test_a_model_is_causal() -> None:
    torch.manual_seed(0)
    model = SPEC.build(LlamaArgs(dim=32, n_layers=2, n_heads=4, n_kv_heads=2, hidden_dim=48, vocab_size=251))
    ids = torch.randint(0, 251, (2, 12))
    changed = ids.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 251
    before, after = model(ids), model(changed)
    assert before.shape == (2, 12, 251)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])
