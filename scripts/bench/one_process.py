"""The trainer against a plain PyTorch loop over the same model in one process: tokens/s, and host time a step on a tiny model.

    python scripts/bench/one_process.py

Both sides live in this process and take turns, block by block; each pair gives one ratio, and the median of them is reported. The goals:
at least 0.97 of the plain loop's tokens/s, under 2 ms a step of the trainer's own. Needs no device; takes about two minutes on a core.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

os.environ.setdefault("TITAN_DEVICE", "cpu")  # before torch looks

import torch
from measured import DEBUG, TINY, configuration, run
from plain import PlainLoop
from report import spread, table, write


@dataclass(frozen=True)
class Setting:
    """What one comparison runs: `pairs` pairs of `block` steps after two blocks that nobody counts."""

    args: dict[str, int]
    rows: int
    seq_len: int
    block: int
    pairs: int


SPEED = Setting(DEBUG, rows=4, seq_len=256, block=2, pairs=24)
OVERHEAD = Setting(TINY, rows=1, seq_len=32, block=20, pairs=60)


def compare(setting: Setting) -> tuple[list[float], list[float]]:
    """(seconds a step of the trainer, of the plain loop), pair by pair."""
    plain = PlainLoop(setting.args, rows=setting.rows, seq_len=setting.seq_len)
    trainer_times: list[float] = []
    plain_times: list[float] = []

    def pause(seconds: float) -> None:
        trainer_times.append(seconds / setting.block)
        plain_times.append(plain.block(setting.block) / setting.block)

    with tempfile.TemporaryDirectory() as folder:
        config = configuration(
            Path(folder),
            setting.args,
            rows=setting.rows,
            seq_len=setting.seq_len,
            steps=setting.block * (setting.pairs + 2),
            precision="float32",
            shards=1,
        )
        run(config, block=setting.block, pause=pause)
    return trainer_times[2:], plain_times[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="torch threads; 1 is steadier on a shared machine")
    torch.set_num_threads(parser.parse_args().threads)
    ours, bare = compare(SPEED)
    tokens = SPEED.rows * SPEED.seq_len
    ratios = [b / a for a, b in zip(ours, bare, strict=True)]
    small, small_bare = compare(OVERHEAD)
    overhead = [1e3 * (a - b) for a, b in zip(small, small_bare, strict=True)]
    rows = [
        ["tokens/s, trainer", spread([tokens / one for one in ours], 0)],
        ["tokens/s, plain loop", spread([tokens / one for one in bare], 0)],
        ["trainer / plain loop, median of pairs", spread(ratios)],
        ["tiny model, ms a step, trainer", spread([1e3 * one for one in small], 2)],
        ["tiny model, ms a step, plain loop", spread([1e3 * one for one in small_bare], 2)],
        ["host overhead, ms a step, median of pairs", spread(overhead, 2)],
    ]
    text = (
        f"`Trainer.train` (float32, {SPEED.rows} rows of {SPEED.seq_len} tokens, 6.16 M parameters) and a plain loop in turns of "
        f"{SPEED.block} steps, {SPEED.pairs} pairs; host overhead on a model of dim {TINY['dim']} and {TINY['n_layers']} layers with one "
        f"row of {OVERHEAD.seq_len} tokens, turns of {OVERHEAD.block} steps, {OVERHEAD.pairs} pairs. Medians, quartiles in brackets.\n\n"
        + table(["measured", "value"], rows)
        + f"\n\nGoals: ratio at least 0.97 ({'met' if median(ratios) >= 0.97 else 'missed'}), overhead under 2 ms "
        f"({'met' if median(overhead) < 2 else 'missed'})."
    )
    write("one-process", "One process against a plain loop", text)


if __name__ == "__main__":
    main()
