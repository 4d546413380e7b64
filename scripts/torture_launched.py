"""What torture.py does to ./train.sh: a full disk, a folder turned read-only, SIGTERM and SIGSTOP.

Each returns what it did and what went wrong. After the disturbance the run is started again, and must end with the
losses of an undisturbed one.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from torture_run import ROOT, Run, disagreement, losses

TWO = "--parallelism.data_parallel_shard_degree=2"
REPEAT = 5
Outcome = tuple[str, list[str]]


def start(run: Run, *words: str, **options: Any) -> subprocess.Popen[str]:
    command = [str(ROOT / "train.sh"), str(run.config), TWO, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )


def finish(run: Run, *words: str) -> tuple[int, str]:
    process = start(run, *words)
    told, _ = process.communicate(timeout=300)
    return process.returncode, told


@cache
def undisturbed(root: Path) -> dict[int, float]:
    """Losses of the run at its own pace, once."""
    run = Run(root / "launched-straight")
    code, told = finish(run)
    if code:
        raise RuntimeError(f"the undisturbed run failed:\n{told}")
    return losses(run)


def resumes(run: Run, wanted: dict[int, float]) -> list[str]:
    """Starts the run again and compares it."""
    found = run.damage()
    code, told = finish(run)
    if code:
        return [*found, f"{run.folder}: the resume ended with {code}:\n{told}"]
    said = disagreement(wanted, losses(run))
    return [*found, f"{run.folder}: {said}"] if said else found


@contextmanager
def tmpfs(folder: Path, size: str) -> Any:
    """A small file system on `folder`; False where this user may not mount."""
    folder.mkdir(parents=True)
    mounted = not subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]).returncode
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, option: str) -> bool:
    command = ["mount", "-o", f"remount,{option}", str(folder)]
    return not subprocess.run(command, stderr=subprocess.DEVNULL).returncode


def failed_well(code: int, told: str, run: Run, words: tuple[str, ...]) -> list[str]:
    """A run that cannot go on must say why, and not end as if it were done or stopped."""
    found = [f"{run.folder}: exit code {code} of a run that failed"] if code in (0, 75) else []
    found += [f"{run.folder}: the message does not say {word!r}:\n{told}" for word in words if word not in told]
    return found


def disk(root: Path, rng: random.Random) -> Outcome:
    """A disk that fills up while checkpoints are written, in both modes."""
    wanted, failures, how = undisturbed(root), [], "tmpfs"
    for mode in ("disabled", "async"):
        run = Run(root / f"disk-{mode}")
        with tmpfs(run.checkpoints, "12m") as mounted:
            words = [f"--checkpoint.async_mode={mode}", "--checkpoint.keep_latest_k=0"]
            options: dict[str, Any] = {}
            if not mounted:
                how = "a limit on the size of files, since no tmpfs can be mounted here"
                finish(run, *words, "--job.time_limit=1")
                options["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
            process = start(run, *words, **options)
            told, _ = process.communicate(timeout=300)
            reason = "No space left on device" if mounted else "File too large"
            failures += failed_well(process.returncode, told, run, (reason, str(run.checkpoints)))
            if mounted:
                if not run.complete():
                    failures.append(f"{run.folder}: no checkpoint before the disk was full")
                run.remember()
                remount(run.checkpoints, "size=200m")
            failures += resumes(run, wanted)
    return f"both modes, by {how}", failures


def readonly(root: Path, rng: random.Random) -> Outcome:
    """A checkpoint folder that turns read-only between two saves."""
    wanted, run = undisturbed(root), Run(root / "readonly")
    with tmpfs(run.checkpoints, "200m") as mounted:
        process = start(run)
        while not run.complete() and process.poll() is None:
            time.sleep(0.005)
        if mounted:
            while not remount(run.checkpoints, "ro") and process.poll() is None:  # busy while a file is open
                time.sleep(0.001)
        elif os.geteuid() == 0:
            process.kill()
            return "not done: root heeds no permissions and cannot mount here", []
        else:
            run.checkpoints.chmod(0o500)
        run.remember()
        told, _ = process.communicate(timeout=300)
        reason = "Read-only file system" if mounted else "Permission denied"
        failures = failed_well(process.returncode, told, run, (reason, str(run.checkpoints)))
        if mounted:
            remount(run.checkpoints, "rw")
        else:
            run.checkpoints.chmod(0o700)
        failures += resumes(run, wanted)
    return "a remounted tmpfs" if mounted else "permissions", failures


def sigterm(root: Path, rng: random.Random) -> Outcome:
    """SIGTERM to train.sh at random moments from its first instant on."""
    wanted, failures, codes, slowest = undisturbed(root), [], [], 0.0
    for number in range(REPEAT):
        run = Run(root / f"sigterm-{number}")
        process = start(run)
        time.sleep(rng.random() * 12)
        workers = descendants(process.pid)
        stepped = (run.folder / "metrics.jsonl").exists()
        process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        told, _ = process.communicate(timeout=120)
        took = time.monotonic() - begun
        slowest, left = max(slowest, took), [pid for pid in workers if alive(pid)]
        codes.append(process.returncode)
        # Before the launcher has taken over the signal it dies of it, and there is nothing to lose.
        allowed = (75, 0) if stepped else (75, 0, -signal.SIGTERM, 143)
        if process.returncode not in allowed:
            failures.append(f"{run.folder}: exit code {process.returncode}:\n{told}")
        if took > 30 or left:
            failures.append(f"{run.folder}: {took:.0f} s until the launcher was gone, processes left: {left}")
        if stepped and process.returncode == 75 and not run.complete():
            failures.append(f"{run.folder}: stopped without a checkpoint")
        run.remember()
        failures += resumes(run, wanted)
    return f"exit codes {codes}, at most {slowest:.1f} s until all were gone", failures


def sigstop(root: Path, rng: random.Random) -> Outcome:
    """A worker that stands still: the run must end by its timeout, naming it, and resume."""
    wanted, run = undisturbed(root), Run(root / "sigstop")
    process = start(run, "--comm.train_timeout_seconds=5")
    while not run.complete() and process.poll() is None:
        time.sleep(0.005)
    workers = [pid for pid in descendants(process.pid) if "titan" in command(pid) and "train" in command(pid)]
    os.kill(rng.choice(workers), signal.SIGSTOP)
    begun = time.monotonic()
    told, _ = process.communicate(timeout=180)
    took, failures = time.monotonic() - begun, failed_well(process.returncode, told, run, ("rank",))
    if left := [pid for pid in workers if alive(pid)]:
        failures.append(f"{run.folder}: processes left: {left}")
    run.remember()
    failures += resumes(run, wanted)
    return f"ended after {took:.1f} s with exit code {process.returncode}", failures


def descendants(pid: int) -> list[int]:
    """Processes under `pid`, by /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        todo += (more := children.get(todo.pop(), []))
        found += more
    return found


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


SCENARIOS: dict[str, Callable[[Path, random.Random], Outcome]] = {
    "disk": disk,
    "readonly": readonly,
    "sigterm": sigterm,
    "sigstop": sigstop,
}
