"""The parameters of this rank's model parts under their canonical, global names.

Everything that speaks of parameters by name (initial weights, decay groups, the norm, checkpoints) reads this list, so that no wrapper's
prefix, stage number or rank gets into a key. A tied parameter that stands on two pipeline stages has two entries of one name; the
second is not counted: it is initialised and loaded like the first, but neither in the norm nor saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.", "_fsdp_wrapped_module.")


@dataclass(frozen=True)
class NamedParameter:
    """One parameter: its canonical FQN, the (local shard of the) parameter, and whether this entry stands for it in sums and saves."""

    fqn: str
    parameter: nn.Parameter
    counted: bool = True


def canonical_fqn(name: str) -> str:
    """The name without what activation checkpointing, compile or FSDP wrappers put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def named_parameters(parts: Sequence[nn.Module], tied: Mapping[str, str]) -> list[NamedParameter]:
    """Parameters of all parts in their order.

    Args:
        tied: second FQN to canonical FQN, as `{"output.weight": "tok_embeddings.weight"}`. A parameter that is truly shared within a
            part appears once.

    Raises:
        ValueError: two parts hold the same name.
    """
    found: list[NamedParameter] = []
    taken: set[tuple[str, bool]] = set()
    for part in parts:
        for name, parameter in part.named_parameters():
            own = canonical_fqn(name)
            fqn, counted = tied.get(own, own), own not in tied
            if (fqn, counted) in taken:
                raise ValueError(f"two model parts of this rank hold a parameter named {own}")
            taken.add((fqn, counted))
            found.append(NamedParameter(fqn, parameter, counted))
    return found
