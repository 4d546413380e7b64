"""One rank of titan in the comparison with another trainer: `titan_rank.py PRECISION ROWS SEQ STEPS BLOCK FOLDER`.

Started by `peers.py`, which sets the variables of the process group.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from measured import DEBUG, Clock, configuration, run
from turns import Turns


def main() -> None:
    precision, rows, seq_len, steps, block, folder = sys.argv[1:]
    config = configuration(
        Path(folder),
        DEBUG,
        rows=int(rows),
        seq_len=int(seq_len),
        steps=int(steps),
        precision=precision,
        shards=int(os.environ["WORLD_SIZE"]),
    )
    turns: list[Turns] = []

    def pause(_: Clock) -> None:
        if not turns:
            turns.append(Turns(int(block)))
        turns[0].after_step()

    run(config, block=1, pause=pause)


if __name__ == "__main__":
    main()
