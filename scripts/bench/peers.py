"""Tokens/s at dp_shard 2 against another trainer from PyPI: same model, batch and optimizer, the two jobs in turns.

    python -m venv OLMO && OLMO/bin/pip install "torch>=2.13,<2.14" ai2-olmo-core==3.0.0
    python scripts/bench/peers.py olmo OLMO/bin/python
    python -m venv TITAN && TITAN/bin/pip install "torch>=2.13,<2.14" torchtitan==0.2.2 triton
    python scripts/bench/peers.py torchtitan TITAN/bin/python

Both jobs live at once and train alternately, a block of steps each, so that a pair of blocks sees the same machine.
Sequence 512, 2 rows a rank, one thread a rank, float32 and then bfloat16 (masters and reduction float32 in both).
The goal: 1.1 times OLMo-core in each.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from report import spread, table, write

HERE = Path(__file__).resolve().parent
RANKS, ROWS, SEQ, BLOCK, WARM = 2, 4, 512, 2, 2
PACKAGES = {"olmo": "ai2-olmo-core", "torchtitan": "torchtitan"}


class Job:
    """The processes of one trainer; `turn` lets it train a block."""

    def __init__(self, name: str, python: str, arguments: list[str], folder: Path) -> None:
        self.name, self.folder = name, folder
        folder.mkdir(parents=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = {**os.environ, "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "NUM_NODES": "1"}
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "TITAN_DEVICE": "cpu"}
        self._ranks: list[subprocess.Popen[str]] = []
        for rank in range(RANKS):
            with (folder / f"rank-{rank}.log").open("w") as log:
                self._ranks.append(
                    subprocess.Popen(
                        [python, str(HERE / f"{name}_rank.py"), *arguments, str(folder / "run")],
                        env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "FS_LOCAL_RANK": str(rank)},
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE if rank == 0 else log,
                        stderr=log,
                        text=True,
                    )
                )

    def finish_block(self) -> tuple[float, float]:
        """(wall, processor) seconds of the running block, once it ends. SystemExit with the log where the job died."""
        out = self._ranks[0].stdout
        if out is not None:
            for line in out:
                if line.startswith("block "):
                    wall, processor = map(float, line.split()[1:])
                    return wall, processor
        log = (self.folder / "rank-0.log").read_text(errors="replace")
        raise SystemExit(f"{self.name} ended before its measurement did:\n{log[-3000:]}")

    def go(self) -> None:
        """Lets it train the next block, or end after the last one."""
        pipe = self._ranks[0].stdin
        if pipe is not None:
            pipe.write("go\n")
            pipe.flush()

    def close(self) -> None:
        """Ends what still runs, and waits for it."""
        for rank in self._ranks:
            rank.kill()
            rank.wait()


def compare(precision: str, peer: str, python: str, pairs: int, folder: Path) -> list[list[tuple[float, float]]]:
    """(wall, processor) seconds of each block of titan, then of the peer."""
    arguments = [precision, str(ROWS), str(SEQ), str(BLOCK * (pairs + WARM)), str(BLOCK)]
    pythons = (("titan", sys.executable), (peer, python))
    jobs: list[Job] = []
    blocks: list[list[tuple[float, float]]] = [[], []]
    try:
        for name, executable in pythons:
            jobs.append(Job(name, executable, arguments, folder / f"{name}-{precision}"))
        for index in range(pairs + WARM):
            for job, times in zip(jobs, blocks, strict=True):
                if index:
                    job.go()
                times.append(job.finish_block())
    finally:
        for job in jobs:
            job.close()
    return [times[WARM:] for times in blocks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PACKAGES)
    parser.add_argument("python", help="the Python of an environment with it")
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--precision", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    chosen = parser.parse_args()
    package = PACKAGES[chosen.peer]
    asked = f"from importlib.metadata import version as v; print(v({package!r}), 'on torch', v('torch'))"
    version = subprocess.run([chosen.python, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for precision in chosen.precision:
            blocks = compare(precision, chosen.peer, chosen.python, chosen.pairs, Path(folder))
            for index, clock in enumerate(("wall", "processor")):
                ours, theirs = ([ROWS * SEQ * BLOCK / block[index] for block in side] for side in blocks)
                ratio = spread([a / b for a, b in zip(ours, theirs, strict=True)])
                rows.append([precision, clock, spread(ours, 0), spread(theirs, 0), ratio])
                print(*rows[-1], sep="; ", flush=True)
    text = (
        f"dp_shard {RANKS}, sequence {SEQ}, {ROWS // RANKS} rows a rank, dim 256, 6 layers, 16 heads, vocabulary 2048 "
        "(6,163,712 parameters in both), fused AdamW, clipping, no compile, one thread a rank, against "
        f"{package} {version} with its own trainer and FSDP2 a block. Both jobs alive, in turns of {BLOCK} steps, "
        f"{chosen.pairs} pairs. Medians, quartiles in brackets. By the processor's "
        "clock: tokens of the job over the processor seconds of rank 0, all threads. The goal is 1.1 against "
        "OLMo-core in each.\n\n"
        + table(["compute", "clock", "titan, tokens/s", f"{package}, tokens/s", "ratio, pair by pair"], rows)
    )
    write(chosen.peer, f"Two ranks against {package}", text)


if __name__ == "__main__":
    main()
