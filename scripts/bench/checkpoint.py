"""Saving a model of 100 M parameters with AdamW: what training waits, and how fast it is written, against `torch.save`.

`python scripts/bench/checkpoint.py [FOLDER]`: one process, float32, 1.2 GB a save, into FOLDER (default: a temporary
one). Plain `torch.save` of the same tensors into one file with an fsync is the limit of what a save can cost on this
storage, so the two take turns. The stall is the time in `CheckpointManager.save` as training sees it. Last, steps are
timed while a save is in flight whose writer is slowed by five seconds, and while none is.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import torch
from report import spread, table, write
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.optim import AdamW

from titan.checkpoint import CheckpointManager
from titan.checkpoint.storage import at
from titan.checkpoint.verify import verify
from titan.config.schema_checkpoint import Checkpoint
from titan.models import registry
from titan.parallelisms.parameters import named_parameters

ARGS = {"dim": 768, "n_layers": 12, "n_heads": 12, "vocab_size": 12288}
TURNS = 3
SLOWED = 5.0
MODES = ("disabled", "async", "async_with_pinned_mem")


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class State:
    """The model and its optimizer after one step, and a smaller model to take steps with."""

    def __init__(self) -> None:
        spec = registry.get("llama3")
        torch.manual_seed(1)
        self.model: nn.Module = spec.build(spec.args(**ARGS))
        self.optimizer = AdamW(self.model.parameters(), lr=1e-4, fused=True)
        for parameter in self.model.parameters():
            nn.init.normal_(parameter, std=0.02)
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.size = 4 * 3 * self.parameters
        self._small = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))

    def manager(self, folder: Path, mode: str) -> CheckpointManager:
        section = Checkpoint(enable=True, async_mode=mode, last_save_model_only=False, keep_latest_k=0)
        return CheckpointManager(section, folder, named_parameters([self.model], {}), self.optimizer)

    def plain(self, path: Path) -> None:
        with path.open("wb") as file:
            torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())

    def copy(self, into: list[torch.Tensor] | None) -> list[torch.Tensor]:
        """The state once more: in new memory, or in that of an earlier copy. No save in the background stalls less."""
        tensors = [one.detach() for one in self.model.parameters()]
        tensors += [one for values in self.optimizer.state.values() for one in values.values()]
        if into is None:
            return [one.clone() for one in tensors]
        return [kept.copy_(one) for kept, one in zip(into, tensors, strict=True)]

    def step(self) -> None:
        """Some milliseconds of forward and backward."""
        self._small(torch.ones(256, 512)).sum().backward()


@dataclass
class Times:
    """Of one way to save: seconds that training waits, seconds to the end, and processor seconds of all threads."""

    stall: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def take(self, save: Callable[[], object], wait: Callable[[], object]) -> None:
        processor, started = time.process_time(), time.perf_counter()
        save()
        self.stall.append(time.perf_counter() - started)
        wait()
        self.whole.append(time.perf_counter() - started)
        self.processor.append(time.process_time() - processor)

    def row(self, name: str, size: int) -> list[str]:
        """Without the first save, which warms up."""
        rates = [size / 1e9 / one for one in self.whole[1:]]
        return [name, spread(self.stall[1:], 2), spread(rates, 2), spread(self.processor[1:], 2)]


def saves(state: State, root: Path) -> list[list[str]]:
    """Rows of the table. What was written before is removed between the saves, not in their time."""
    plain, file = Times(), root / "plain.pt"
    ours = {mode: Times() for mode in MODES}
    managers = {mode: state.manager(root / mode, mode) for mode in MODES}
    kept, fresh, again = state.copy(None), Times(), Times()
    for turn in range(TURNS + 1):
        fresh.take(partial(state.copy, None), lambda: None)
        again.take(partial(state.copy, kept), lambda: None)
        plain.take(partial(state.plain, file), lambda: None)
        file.unlink()
        for mode, manager in managers.items():
            ours[mode].take(partial(manager.save, turn, {}), manager.wait)
            if turn < TURNS:
                shutil.rmtree(root / mode / f"step-{turn}")
    for manager in managers.values():
        manager.close()
    rows = [plain.row("plain `torch.save` and fsync", state.size)]
    rows += [times.row(f'async_mode = "{mode}"', state.size) for mode, times in ours.items()]
    rows.append(fresh.row("for scale: a copy into new memory", state.size))
    return [*rows, again.row("for scale: a copy into memory that is there", state.size)]


def steps_beside_a_slow_writer(state: State, root: Path) -> tuple[list[float], list[float]]:
    """Seconds of steps with no save in flight, and of those that were taken while the slowed writer slept."""
    original = FileSystemWriter.write_data

    def slowly(*arguments: object) -> object:
        time.sleep(SLOWED)
        return original(*arguments)  # type: ignore[arg-type]

    manager = state.manager(root / "slow", "async")
    alone = [seconds(state.step) for _ in range(200)][20:]
    FileSystemWriter.write_data = slowly  # type: ignore[method-assign]
    try:
        manager.save(1, {})
        until = time.perf_counter() + SLOWED * 0.9
        beside = []
        while time.perf_counter() < until:
            beside.append(seconds(lambda: (state.step(), manager.poll())))
        manager.close()
    finally:
        FileSystemWriter.write_data = original  # type: ignore[method-assign]
    return alone, beside


def main() -> None:
    root = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp(prefix="titan-bench-"))
    root.mkdir(parents=True, exist_ok=True)
    state = State()
    try:
        rows = saves(state, root)
        verified = [seconds(lambda: verify(at(root / "disabled" / f"step-{TURNS}"))) for _ in range(3)]
        alone, beside = steps_beside_a_slow_writer(state, root)
    finally:
        for name in (*MODES, "slow"):
            shutil.rmtree(root / name, ignore_errors=True)
        (root / "plain.pt").unlink(missing_ok=True)
    gigabytes = state.size / 1e9
    text = "\n".join(
        [
            f"{state.parameters / 1e6:.1f} M parameters and AdamW in float32, {gigabytes:.2f} GB a save, one process,",
            f"{TURNS} saves of each in turns, at a load average of {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores.",
            "The stall is what training waits, the rate that of the whole save with",
            "checksums, fsync and commit, the processor's time that of all threads: it stands where other work on the",
            "machine spoils the wall's. Medians, quartiles in brackets.\n",
            table(["save", "stall, s", "GB/s to storage", "processor, s"], rows),
            "",
            f"`titan checkpoint verify` of one: {median(verified):.2f} s, {gigabytes / median(verified):.1f} GB/s,",
            f"from the page cache. A step of {1e3 * median(alone):.2f} ms (median of {len(alone)}) takes",
            f"{1e3 * median(beside):.2f} ms (median of {len(beside)}) while a save is in flight whose writer is slowed",
            f"by {SLOWED:.0f} s.",
        ]
    )
    write("checkpoint", "Saving checkpoints", text)


if __name__ == "__main__":
    main()
