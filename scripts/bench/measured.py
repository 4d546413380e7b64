"""The trainer as the benchmarks run it: the real `Trainer.train`, in-memory rows, and a pause after each block of
steps.

The clock runs from the end of one pause to the start of the next, so that everything the loop does is in the time:
data, counting, clipping, logging, metric files, garbage collection. In the pause something else may be timed, which
makes the pairs of a comparison neighbours on a machine whose speed drifts.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from titan.config import Config, resolve
from titan.runtime import StopRequest, setup, shutdown
from titan.trainer import Trainer

VOCAB = 2048
DEBUG = {"dim": 256, "n_layers": 6, "n_heads": 16, "vocab_size": VOCAB}  # the debugmodel flavor: 6.16 M parameters
TINY = {"dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": VOCAB}


class Clock(NamedTuple):
    """A moment or a duration in seconds: of the wall, and of the processor as this thread used it."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> Clock:
        return cls(time.perf_counter(), time.thread_time())

    def __sub__(self, other: Clock) -> Clock:
        return Clock(self.wall - other.wall, self.processor - other.processor)


class RandomRows:
    """Rows of random ids, a function of their number; every position has a loss."""

    fingerprint, tokenizer_fingerprint, rows_per_epoch = "random", "random", 1 << 20

    def __init__(self, seq_len: int) -> None:
        self.seq_len = seq_len

    def fetch(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(inputs, labels), each (count, seq_len) int64."""
        tokens = np.random.default_rng(start).integers(0, VOCAB, (count, self.seq_len + 1))
        return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])


class PausedTrainer(Trainer):
    """Calls `pause(clock)` after every `block` steps with the time that they took."""

    block: int
    pause: Callable[[Clock], None]
    _since: Clock

    def _after_step(self, *passed: Any, **named: Any) -> None:
        super()._after_step(*passed, **named)
        if self.progress.step % self.block == 0:
            self.pause(Clock.now() - self._since)
            self._since = Clock.now()


def configuration(
    folder: Path, args: dict[str, int], *, rows: int, seq_len: int, steps: int, precision: str, shards: int
) -> Config:
    """A run of `rows` rows a step over the whole job, with the defaults of the product but for what is named here."""
    sections: dict[str, dict[str, Any]] = {
        "job": {"dump_folder": str(folder)},
        "model": {"name": "llama3", "flavor": "debugmodel", "args": dict(args)},
        "optimizer": {"lr": 1e-4},
        "lr_scheduler": {"warmup_steps": 2},
        "training": {
            "global_batch_size": rows,
            "local_batch_size": -1,
            "seq_len": seq_len,
            "steps": steps,
            "mixed_precision_param": precision,
        },
        "parallelism": {"data_parallel_shard_degree": shards},
        "activation_checkpoint": {"mode": "none"},
        "metrics": {"enable_tensorboard": True},
        "debug": {"seed": 1},
    }
    return Config.model_validate(sections)


def run(config: Config, *, block: int, pause: Callable[[Clock], None]) -> None:
    """Trains to the last step with a pause after each block; its console lines are formatted and dropped."""
    log = logging.getLogger("titan")
    log.setLevel(logging.INFO)
    log.propagate = False
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        log.handlers = [logging.StreamHandler(nowhere)]
        stop = StopRequest.install()
        world = setup(config.comm)
        trainer = PausedTrainer(
            resolve(config, world.world_size, world.device.type), world, rows=RandomRows(config.training.seq_len)
        )
        trainer.block, trainer.pause, trainer._since = block, pause, Clock.now()
        trainer.train(stop)
        shutdown(world)
        log.handlers = []
