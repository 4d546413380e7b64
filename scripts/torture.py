"""Kills training at random moments, many times over, and takes away what it stands on: is it still the same run?

`kills` ends one rank or all with SIGKILL, at random or just as a save begins, in sync and async mode, and goes on at
another layout each time. After each kill every checkpoint that counts as complete must pass the checksums and none may
be lost; a run that gets through must have the losses of one undisturbed process, one line a step. `disk`, `readonly`,
`sigterm` and `sigstop` do it to ./train.sh. Exit 0: no failure; 1: failures, whose folders stay. Linux; a tmpfs needs
root, without it the disk fills by a limit on the size of files, and `readonly` by permissions.

    python scripts/torture.py --kills 100
    python scripts/torture.py --only disk,readonly,sigterm,sigstop
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from torture_launched import SCENARIOS  # beside this file: scripts are no package
from torture_run import Run, disagreement, losses

from titan.checkpoint.folders import LEFTOVER
from titan.parity.ranks import RankError, run_ranks

LAYOUTS = (
    (),
    ("--parallelism.data_parallel_shard_degree=2",),
    ("--parallelism.data_parallel_replicate_degree=2",),
    ("--parallelism.tensor_parallel_degree=2",),
    ("--parallelism.pipeline_parallel_degree=2", "--parallelism.pipeline_parallel_schedule=ZBVZeroBubble"),
    ("--parallelism.context_parallel_degree=2", "--training.local_batch_size=2"),
)
MODES = ("disabled", "async")


def train(path: str, words: list[str], pids: Path) -> int:
    """What a rank does: a whole attempt, from the newest checkpoint."""
    from titan.config import load
    from titan.parity.measure import make_trainer
    from titan.runtime import StopRequest, log

    config = load(path, words)
    log.own_streams(config.job.dump_folder, int(os.environ["RANK"]))
    (pids / os.environ["RANK"]).write_text(str(os.getpid()))
    return make_trainer(config).train(StopRequest())


@dataclass
class Report:
    """What happened."""

    kills: int = 0
    hit_save: int = 0
    all_ranks: int = 0
    runs: int = 0
    attempts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    longest: float = 0.0
    """Seconds from the first worker to the end of a run that nobody disturbs: a kill falls into them."""


def attempt(run: Run, words: list[str], rng: random.Random, killing: bool, report: Report) -> bool:
    """One attempt, killed on the way if `killing`; True where it came to its end."""
    size = 2 if any(word.endswith("=2") and "degree" in word for word in words) else 1
    outcome: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        pids = Path(folder)

        def go() -> None:
            try:
                outcome["codes"] = run_ranks(train, size, str(run.config), words, pids, fresh=True, timeout=300)
            except (RankError, TimeoutError) as error:
                outcome["error"] = error

        thread = threading.Thread(target=go)
        thread.start()
        killed = killing and kill(run, pids, size, rng, thread, report)
        thread.join()
    if "error" in outcome and not killed:
        report.failures.append(f"{run.folder}: an attempt that nobody killed failed: {outcome['error']}")
    if killed:
        report.failures += run.damage()
    return "codes" in outcome


def kill(run: Run, pids: Path, size: int, rng: random.Random, thread: threading.Thread, report: Report) -> bool:
    """Waits for its moment and kills; False where the attempt ended before."""
    while len(found := [path for path in pids.iterdir() if path.read_text()]) < size:
        if not thread.is_alive():
            return False
        time.sleep(0.01)
    targets = [int(path.read_text()) for path in found]
    before = leftovers(run)
    if rng.random() < 0.5:  # as a save begins
        while thread.is_alive() and leftovers(run) <= before:
            time.sleep(0.0005)
        time.sleep(rng.random() * 0.02)
    else:
        time.sleep(rng.random() * report.longest)
    run.remember()
    everyone = rng.random() < 0.5
    for pid in targets if everyone else [rng.choice(targets)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
    time.sleep(0.01)
    report.hit_save += not leftovers(run) <= before
    report.kills += 1
    report.all_ranks += everyone
    return True


def leftovers(run: Run) -> set[tuple[str, int]]:
    """Saves that have begun and not ended, by name and inode."""
    if not run.checkpoints.is_dir():
        return set()
    found = set()
    for entry in os.scandir(run.checkpoints):
        if LEFTOVER.fullmatch(entry.name):
            found.add((entry.name, entry.inode()))
    return found


def kills(count: int, root: Path, rng: random.Random, report: Report) -> None:
    """Runs until `count` kills have happened, each run to its end."""
    straight = Run(root / "straight")
    begun = time.monotonic()
    (code,) = run_ranks(train, 1, str(straight.config), [], root, fresh=True, timeout=300)
    report.longest = time.monotonic() - begun
    if code:
        raise RuntimeError(f"the undisturbed run ended with {code}; see {straight.folder}")
    wanted = losses(straight)
    while report.kills < count:
        report.runs += 1
        run = Run(root / f"run-{report.runs}")
        ended = False
        while not ended:
            words = [*rng.choice(LAYOUTS), f"--checkpoint.async_mode={rng.choice(MODES)}"]
            report.attempts[" ".join(word.rpartition(".")[2] for word in words)] += 1
            ended = attempt(run, words, rng, report.kills < count, report)
            if report.failures:
                return
        if said := disagreement(wanted, losses(run)):
            report.failures.append(f"{run.folder}: {said}")
            return
        print(f"run {report.runs}: as undisturbed; {report.kills} kills, {report.hit_save} in a save", flush=True)


def main() -> int:
    """Runs what was asked for and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="SIGKILLs (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="kills", help=f"kills, {', '.join(SCENARIOS)}, separated by commas; or all")
    options = parser.parse_args()
    wanted = ["kills", *SCENARIOS] if options.only == "all" else options.only.split(",")
    if unknown := set(wanted) - {"kills", *SCENARIOS}:
        parser.error(f"--only: no such scenario: {', '.join(sorted(unknown))}")
    root = Path(tempfile.mkdtemp(prefix="titan-torture-"))
    rng, report = random.Random(options.seed), Report()
    begun = time.monotonic()
    if "kills" in wanted:
        kills(options.kills, root, rng, report)
    for name in (name for name in SCENARIOS if name in wanted):
        said, failures = SCENARIOS[name](root, rng)
        print(f"{name}: {said}", flush=True)
        report.failures += failures
    if not report.failures:
        shutil.rmtree(root)
    print(json.dumps({**vars(report), "seconds": round(time.monotonic() - begun, 1)}, indent=2))
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
