"""Every parameter of this rank under one global name, whatever the layout has made of the module tree.

A name is the FQN of the single-device model: wrappers of activation checkpointing and compile are stripped, and a
pipeline stage keeps the names of the whole model. Initial weights, optimizer groups, the clip norm and checkpoints
all rest on this one list.

A tied parameter has one canonical name. Where one process or rank holds both uses as one Parameter, it is listed
once. Where they are two Parameters (first and last pipeline stage, also on one rank under V schedules), the second
is listed under the canonical name with `counted` False: it gets the same initial value, update and checkpoint, but
enters the norm and a saved file only once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.", "_fsdp_wrapped_module.")


@dataclass(frozen=True)
class NamedParameter:
    """A parameter and its place in the whole model.

    Attributes:
        fqn: canonical global name.
        parameter: this rank's Parameter; a DTensor with the global shape where it is sharded.
        counted: False for the second copy of a tied parameter: not in the norm, not saved, but loaded.
    """

    fqn: str
    parameter: nn.Parameter
    counted: bool = True


def canonical_fqn(name: str) -> str:
    """The name in the single-device model: without the path segments that wrappers add."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def named_parameters(parts: Sequence[nn.Module], tied: Mapping[str, str]) -> list[NamedParameter]:
    """Lists the parameters of this rank's model parts, in the order of the parts and of their modules.

    Args:
        parts: the whole model, or this rank's pipeline stages.
        tied: second name -> canonical name, such as {"output.weight": "tok_embeddings.weight"}.

    Raises:
        ValueError: two parameters have one name, or one Parameter has two names that are not declared as tied.
    """
    named: list[NamedParameter] = []
    fqn_of: dict[int, str] = {}
    seen: set[tuple[str, bool]] = set()
    for part in parts:
        for name, parameter in part.named_parameters(remove_duplicate=False):
            own = canonical_fqn(name)
            fqn = tied.get(own, own)
            if id(parameter) in fqn_of:
                if fqn_of[id(parameter)] != fqn:
                    raise ValueError(
                        f"{fqn_of[id(parameter)]} and {own} are one Parameter, but the model does not declare "
                        f"them as tied: another layout would save two"
                    )
                continue
            counted = own not in tied or _shared(parts, parameter, fqn)
            if (fqn, counted) in seen:
                raise ValueError(
                    f"two parameters of this rank are named {own}: each name may stand in one model part only"
                )
            seen.add((fqn, counted))
            fqn_of[id(parameter)] = fqn
            named.append(NamedParameter(fqn, parameter, counted))
    return named


def _shared(parts: Sequence[nn.Module], parameter: nn.Parameter, fqn: str) -> bool:
    """Whether the parameter, met under its second name first, stands under the canonical one too."""
    return any(
        other is parameter and canonical_fqn(name) == fqn
        for part in parts
        for name, other in part.named_parameters(remove_duplicate=False)
    )
