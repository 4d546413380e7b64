"""Work that all ranks do together, with one outcome: all get the result, or all raise the same CheckpointError.

A rank that fails alone (its disk, its permission) must not leave the others waiting in a collective, so every step
ends in an exchange of outcomes. Ranks report to rank 0, which answers each of them; no rank but rank 0 holds what
all sent. The exchange runs on a gloo group of its own: on the group that training uses, a background save hung for
good (torch 2.13). Without a process group it is plain calls. A peer that died is not caught here: gloo raises on
the others, and that error says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist

from titan.checkpoint.errors import CheckpointError, CheckpointRefused, listed

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class _Failure:
    text: str
    refused: bool


class Agreement:
    """The ranks that save and load together.

    Args:
        group: a gloo group of all ranks, used by one thread at a time, or None for one process.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self.rank = dist.get_rank(group) if group is not None else 0
        self.size = dist.get_world_size(group) if group is not None else 1

    def scatter(self, doing: str, local: Callable[[], T], central: Callable[[list[T]], list[R]]) -> R:
        """Runs `local` on every rank, `central` on rank 0 over all results by rank, and hands each rank its answer.

        Raises:
            CheckpointError: `local` or `central` raised somewhere; names the ranks. CheckpointRefused where that was
                raised.
        """
        outcomes = self._gather(_attempt(local))
        answers: list[Any] | None = None
        if outcomes is not None:
            failures = {rank: one for rank, one in enumerate(outcomes) if isinstance(one, _Failure)}
            answered = _merge(failures, self.size) if failures else _attempt(lambda: central(outcomes))
            if isinstance(answered, _Failure):
                answers = [_Failure(f"{doing}: {answered.text}", answered.refused)] * self.size
            else:
                answers = answered
        answer = self._scatter(answers)
        if isinstance(answer, _Failure):
            raise CheckpointRefused(answer.text) if answer.refused else CheckpointError(answer.text)
        return answer  # type: ignore[no-any-return]

    def together(self, doing: str, local: Callable[[], T], central: Callable[[list[T]], R]) -> R:
        """As `scatter`, with one answer for all."""
        return self.scatter(doing, local, lambda results: [central(results)] * self.size)

    def first(self, doing: str, work: Callable[[], R]) -> R:
        """Runs `work` on rank 0 after all ranks have come here, and hands its result to all."""
        return self.together(doing, lambda: None, lambda _nothing: work())

    def _gather(self, mine: Any) -> list[Any] | None:
        if self._group is None:
            return [mine]
        outcomes: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(mine, outcomes, dst=0, group=self._group)
        return outcomes

    def _scatter(self, answers: list[Any] | None) -> Any:
        if self._group is None:
            assert answers is not None
            return answers[0]
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, answers, src=0, group=self._group)
        return mine[0]


def _attempt(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except CheckpointError as error:
        return _Failure(str(error), isinstance(error, CheckpointRefused))
    except Exception as error:
        text = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        behind = _system_error(error)
        return _Failure(text if behind is None else f"{text} (after {behind})", False)


def _system_error(error: BaseException) -> OSError | None:
    """What the system said before `error`: torch's zip writer covers a full disk with a complaint about positions."""
    behind = error.__cause__ or error.__context__
    while behind is not None and not isinstance(behind, OSError):
        behind = behind.__cause__ or behind.__context__
    return behind


def _merge(failures: dict[int, _Failure], size: int) -> _Failure:
    refused = any(failure.refused for failure in failures.values())
    texts = {failure.text for failure in failures.values()}
    if len(texts) == 1 and len(failures) == size:
        return _Failure(texts.pop(), refused)
    if len(failures) == 1:
        return _Failure("".join(f"rank {rank}: {one.text}" for rank, one in failures.items()), refused)
    return _Failure("\n" + listed(f"rank {rank}: {one.text}" for rank, one in failures.items()), refused)
