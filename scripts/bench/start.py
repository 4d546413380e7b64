"""Time from the command to the first step: `./train.sh configs/llama3/debug.toml`, data in the cache and with an
empty one.

    python scripts/bench/start.py

The clock starts before the shell does and stops at the console's line of step 1, so that the launcher, imports,
data, the model and the first step itself are in it. Beside it: importing torch alone, which nobody gets below.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import spread, table, write

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "configs/llama3/debug.toml"


def seconds_to_first_step(folder: str, cache: str, *overrides: str) -> float:
    """Runs the command for one step. Raises SystemExit with its output where there is no first step."""
    command = ["./train.sh", CONFIG, f"--job.dump_folder={tempfile.mkdtemp(dir=folder)}", "--training.steps=1"]
    command += [f"--training.cache_folder={cache}", "--checkpoint.enable=false", *overrides]
    begun, first, seen = time.perf_counter(), None, []
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHON": sys.executable, "TITAN_DEVICE": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if process.stdout is not None:
        for line in process.stdout:
            seen.append(line)
            if first is None and "loss" in line and "step" in line:
                first = time.perf_counter() - begun
    if process.wait() != 0 or first is None:
        raise SystemExit("no first step:\n" + "".join(seen)[-3000:])
    return first


def import_torch() -> float:
    """Seconds of `python -c "import torch"`."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        cache = str(Path(folder) / "cache")
        cold = seconds_to_first_step(folder, cache)
        warm, two, torch_alone = [], [], []
        for _ in range(repeats):
            torch_alone.append(import_torch())
            warm.append(seconds_to_first_step(folder, cache))
            two.append(seconds_to_first_step(folder, cache, "--parallelism.data_parallel_shard_degree=2"))
    rows = [
        ["empty cache: tokenizing the standard library first, one run", f"{cold:.1f}"],
        ["tokenized data in the cache, one process", spread(warm, 1)],
        ["the same, two processes (dp_shard 2)", spread(two, 1)],
        ["for scale: `import torch` alone", spread(torch_alone, 1)],
    ]
    text = (
        f"`./train.sh {CONFIG}` in an installed environment; seconds up to the console's line of step 1 "
        f"(8,192 tokens), {repeats} runs in turns. Medians, quartiles in brackets.\n\n"
        + table(["start", "seconds"], rows)
    )
    write("start", "From the command to the first step", text)


if __name__ == "__main__":
    main()
