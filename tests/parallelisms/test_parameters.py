"""Names of parameters: wrappers stripped, tied ones listed once or with an uncounted copy, clashes refused."""

from __future__ import annotations

import pytest
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from titan.parallelisms.parameters import canonical_fqn, named_parameters

pytestmark = pytest.mark.quick
TIED = {"output.weight": "embed.weight"}


def part(*names: str) -> nn.Module:
    module = nn.Module()
    for name in names:
        module.add_module(name, nn.Linear(2, 2, bias=False))
    return module


def listed(*parts: nn.Module, tied: dict[str, str] = TIED) -> list[tuple[str, bool]]:
    return [(named.fqn, named.counted) for named in named_parameters(parts, tied)]


def test_wrappers_leave_no_trace_in_names():
    module = part("block")
    module.block = checkpoint_wrapper(module.block)
    module.block.compile(backend="eager")
    assert listed(module) == [("block.weight", True)]
    assert canonical_fqn("layers._orig_mod.3._checkpoint_wrapped_module.w") == "layers.3.w"


@pytest.mark.parametrize("names", [("embed", "output"), ("output", "embed")])
def test_a_shared_parameter_is_listed_once_under_the_canonical_name(names):
    module = part(*names)
    module.output.weight = module.embed.weight
    assert listed(module) == [("embed.weight", True)]


def test_the_second_copy_is_not_counted():
    assert listed(part("output")) == [("embed.weight", False)]
    assert listed(part("embed"), part("output")) == [("embed.weight", True), ("embed.weight", False)]
    assert listed(part("embed"), part("output"), tied={}) == [("embed.weight", True), ("output.weight", True)]


def test_one_name_twice_is_refused():
    with pytest.raises(ValueError, match=r"two parameters of this rank are named block\.weight"):
        listed(part("block"), part("block"))


def test_sharing_that_is_not_declared_is_refused():
    module = part("a", "b")
    module.b.weight = module.a.weight
    with pytest.raises(ValueError, match=r"a\.weight and b\.weight are one Parameter"):
        listed(module)
