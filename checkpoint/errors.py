"""The two ways in which a checkpoint fails, both written for the person who started the run.

`exit_code` is read by titan.runtime.errors: an exception that has one is shown without a traceback. A refusal ends
with 2, since the same start would be refused again; a failure (disk, permission, a lost peer) ends with 1 and may
be restarted.
"""

from __future__ import annotations

from collections.abc import Iterable

_SHOWN = 20


class CheckpointError(RuntimeError):
    """Saving or loading failed; the same message on every rank."""

    exit_code = 1


class CheckpointRefused(CheckpointError):
    """The checkpoint is not one that this run may load: other model, other data, damaged, or not trusted."""

    exit_code = 2


def listed(lines: Iterable[str]) -> str:
    """Lines for a message, each once, at most 20 of them; says how many more there are."""
    unique = list(dict.fromkeys(lines))
    more = [f"... and {len(unique) - _SHOWN} more"] if len(unique) > _SHOWN else []
    return "\n".join("  " + line for line in unique[:_SHOWN] + more)
