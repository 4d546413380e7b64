"""A worker whose run goes wrong on purpose: `python -m tests.faults.worker PLAN CONFIG [overrides]`.

PLAN is a list of `attempt:rank:step:what`, separated by commas; the rest is the worker of every run. Rank and step are
those of the fault, the attempt is torch elastic's restart count.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def plant(rank: int, step: int, what: str) -> None:
    """Makes this process do `what` in the forward or in the save of a step, if it has the rank."""
    from titan import trainer as trainers

    act, _, where = what.partition("-in-")
    fault = {"kill": _kill, "stop": _stop}[act]
    Trainer = trainers.Trainer

    if where == "save":

        def save(self: Any, *args: Any, **kwargs: Any) -> Any:
            from titan.checkpoint import jobs

            if self.world.rank == rank and self.progress.step == step:
                # Others have begun to write and wait for this rank's share.
                jobs.write = lambda *_args, **_kwargs: fault()  # type: ignore[assignment]
            return kept(self, *args, **kwargs)

        kept, Trainer.save = Trainer.save, save  # type: ignore[method-assign]
        return
    assert where == "block"
    forward = Trainer.forward_backward

    def in_block(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.world.rank == rank and self.progress.step + 1 == step:
            blocks = self.model.parts[0].get_submodule(self.resolved.spec.stages.blocks)
            next(blocks.children()).register_forward_pre_hook(lambda *_: fault())
        return forward(self, *args, **kwargs)

    Trainer.forward_backward = in_block  # type: ignore[method-assign]


def main() -> int:
    plan, argv = sys.argv[1], sys.argv[2:]
    from titan.commands import train

    for one in plan.split(","):
        attempt, rank, step, what = one.split(":")
        if attempt == os.environ["TORCHELASTIC_RESTART_COUNT"]:
            plant(int(rank), int(step), what)
    return train.main(argv)


if __name__ == "__main__":
    sys.exit(main())
