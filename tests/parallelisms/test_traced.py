"""Stages cut from a trace: one after the other they are the model, under its own names; what cannot be cut is refused.

The last stage of one run of the schedules is compared with the oracle in tests/distributed/test_traced.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tests.distributed import tiny
from titan.models import registry
from titan.models.llama3.args import LlamaArgs
from titan.models.llama3.model import Llama
from titan.parallelisms.pipeline import keep_modules
from titan.parallelisms.traced import CannotTrace, trace_stages

SPEC = registry.get("llama3")
ARGS = SPEC.flavors["debugmodel"].model_copy(update=tiny.SHAPE)
EVEN = (("tok_embeddings", "layers.0", "layers.1"), ("layers.2", "layers.3", "norm", "output"))
ENDS = (("tok_embeddings",), ("layers.0", "layers.1", "layers.2"), ("layers.3",), ("norm", "output"))


def traced(
    build: Callable[[], nn.Module],
    modules: tuple[tuple[str, ...], ...],
    dtype: torch.dtype = torch.float32,
    wanted: list[int] | None = None,
) -> list[nn.Module]:
    return trace_stages(
        build,
        SPEC.stages,
        modules,
        list(range(len(modules))) if wanted is None else wanted,
        shape=(2, tiny.SEQ),
        device=torch.device("cpu"),
        dtype=dtype,
    )


class Whole(Llama):
    """One module: its forward cannot pass over children that another stage holds."""

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        assert positions is not None
        h, rotation = self.tok_embeddings(x), self.rope(positions)
        for number in range(len(self.layers)):
            h = self.layers[str(number)](h, rotation)
        logits: Tensor = self.output(self.norm(h))
        return logits


@pytest.mark.parametrize("modules", [EVEN, ENDS], ids=["even", "ends apart"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_stages_in_a_row_are_the_model(modules: tuple[tuple[str, ...], ...], dtype: torch.dtype) -> None:
    """To rounding: a trace has torch's RMSNorm, eager code on CPU its own."""
    torch.manual_seed(0)
    whole = Whole(ARGS).to(dtype)
    h = ids = torch.randint(0, tiny.VOCAB, (2, tiny.SEQ))
    positions = torch.arange(tiny.SEQ).flip(0)  # not those of the trace
    for stage in traced(partial(Whole, ARGS), modules, dtype):
        assert {parameter.dtype for parameter in stage.parameters()} == {torch.float32}, "masters keep their dtype"
        stage.to_empty(device="cpu").to(dtype)
        stage.load_state_dict({name: whole.state_dict()[name] for name in stage.state_dict()})
        h = stage(h, positions=positions)
    wanted = whole(ids, positions)
    assert (h - wanted).norm() <= 1e-6 * wanted.norm()


@pytest.mark.parametrize("tie", [False, True])
def test_stages_have_the_names_of_those_that_are_cut_from_the_module(tie: bool) -> None:
    args = ARGS.model_copy(update={"tie_embeddings": tie})
    for number, stage in enumerate(traced(partial(SPEC.build, args), ENDS)):
        with torch.device("meta"):
            cut = keep_modules(SPEC.build(args), SPEC.stages, ENDS[number])
        wanted = {name: parameter.shape for name, parameter in cut.named_parameters()}
        assert {name: parameter.shape for name, parameter in stage.named_parameters()} == wanted
        assert list(stage.get_submodule("layers").named_children()) == [
            (name, stage.get_submodule(f"layers.{name}")) for name in cut.layers
        ]
        assert all((getattr(stage, end) is None) == (getattr(cut, end) is None) for end in ("tok_embeddings", "norm"))


class Skip(Whole):
    """The embedding goes to the head as well."""

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        assert positions is not None
        first = h = self.tok_embeddings(x)
        for layer in self.layers.values():
            h = layer(h, self.rope(positions))
        logits: Tensor = self.output(self.norm(h) + first)
        return logits


class Undecided(Whole):
    """Control flow by a value."""

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        return super().forward(x, positions) * (2 if x.sum() > 0 else 1)


class Held(Whole):
    """A buffer, which no layout would fill."""

    def __init__(self, args: LlamaArgs) -> None:
        super().__init__(args)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        logits: Tensor = super().forward(x, positions) * self.scale
        return logits


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Skip, r"2 tensors \(embedding, add_\d+\) pass into the stage that begins with layers.2"),
        (Undecided, "torch.export cannot trace this model"),
        (Held, r"holds tensors that are no parameters \(scale\)"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused_with_the_reason(model: type[Whole], reason: str) -> None:
    with pytest.raises(CannotTrace, match=reason) as refused:
        traced(partial(model, ARGS), EVEN)
    assert str(refused.value).startswith('parallelism.pipeline_parallel_split = "traced": ')
    assert str(refused.value).endswith('use "layers"')
