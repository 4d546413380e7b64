"""The trainer against a plain PyTorch loop over the same model in one process: tokens/s, and host time a step on a
tiny model.

    python scripts/bench/one_process.py

Both sides live in this process and take turns, block by block; each pair gives one ratio, and the median of them is
reported. The goals: at least 0.97 of the plain loop's tokens/s, under 2 ms a step of the trainer's own. Needs no
device; takes about two minutes on a core.
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
from measured import DEBUG, TINY, Clock, configuration, run
from plain import PlainLoop
from report import PAGE, spread, table, write


@dataclass(frozen=True)
class Setting:
    """What one comparison runs: `pairs` pairs of `block` steps after two blocks that nobody counts."""

    args: dict[str, int]
    rows: int
    seq_len: int
    block: int
    pairs: int


SPEED = Setting(DEBUG, rows=4, seq_len=256, block=2, pairs=16)
OVERHEAD = Setting(TINY, rows=1, seq_len=32, block=10, pairs=60)
SMALL = Setting(TINY, rows=1, seq_len=32, block=2, pairs=2)


def compare(setting: Setting) -> tuple[list[Clock], list[Clock]]:
    """Time of each block of the trainer, and of the plain loop's block after it."""
    plain = PlainLoop(setting.args, rows=setting.rows, seq_len=setting.seq_len)
    trainer_blocks: list[Clock] = []
    plain_blocks: list[Clock] = []

    def pause(block: Clock) -> None:
        trainer_blocks.append(block)
        plain_blocks.append(plain.block(setting.block))

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
    return trainer_blocks[2:], plain_blocks[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="two short pairs of each, to see that it runs")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the section goes")
    chosen = parser.parse_args()
    speed, host = (SMALL, SMALL) if chosen.small else (SPEED, OVERHEAD)
    torch.set_num_threads(1)  # so that the thread's processor time is all of it, and neighbours disturb less
    ours, bare = compare(speed)
    small, small_bare = compare(host)
    tokens = speed.rows * speed.seq_len * speed.block
    rows, ratios, overheads = [], [], []
    for name in ("wall", "processor"):
        a, b = ([getattr(block, name) for block in blocks] for blocks in (ours, bare))
        ratio = [plain / trainer for trainer, plain in zip(a, b, strict=True)]
        c, d = ([1e3 * getattr(block, name) / host.block for block in blocks] for blocks in (small, small_bare))
        overhead = [trainer - plain for trainer, plain in zip(c, d, strict=True)]
        ratios.append(median(ratio))
        overheads.append(median(overhead))
        rows.append([name, *(spread([tokens / one for one in side], 0) for side in (a, b)), spread(ratio)])
        rows[-1] += [spread(c, 2), spread(d, 2), spread(overhead, 2)]
    head = ["clock", "tokens/s, trainer", "tokens/s, plain", "ratio, pair by pair"]
    head += ["tiny: ms a step, trainer", "plain", "host overhead, ms, pair by pair"]
    text = (
        f"`Trainer.train` (float32, {speed.rows} rows of {speed.seq_len} tokens, dim {speed.args['dim']}, "
        f"{speed.args['n_layers']} layers) and a plain loop in turns of {speed.block} steps, {speed.pairs} pairs; "
        f"host overhead on a model of dim {TINY['dim']} and "
        f"{TINY['n_layers']} layers with one row of {host.seq_len} tokens, turns of {host.block} steps, "
        f"{host.pairs} pairs. Medians, quartiles in brackets. The processor's time is that of the training thread: "
        "it stands where other work on the machine spoils the wall's.\n\n"
        + table(head, rows)
        + "\n\nGoals: ratio at least 0.97 and overhead under 2 ms a step. By the wall's clock "
        f"{ratios[0]:.3f} and {overheads[0]:.2f} ms, by the processor's {ratios[1]:.3f} and {overheads[1]:.2f} ms."
    )
    write("one-process", "One process against a plain loop", text, chosen.page)


if __name__ == "__main__":
    main()
