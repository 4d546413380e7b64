"""Runs the oracle and the layouts, one after another, each on processes of its own; rows of the table come as they end.

All of them get one configuration: the batch of one process, one seed, no checkpoints. Processes are new ones for each
layout, forked with torch loaded, so that none inherits a cache of the one before. Layouts that change the numbers as
well (`tp=2,training.max_norm=0.1`) are judged by an oracle with the same change. Imports no torch.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titan.config import Config, ConfigError, Problem, Resolved, load, numerics_hash, resolve
from titan.parity.faults import Fault
from titan.parity.layouts import DEGREES, OPTION, Layout
from titan.parity.ranks import RankError, run_ranks
from titan.parity.verdict import Finding, Measured, OracleRun, differences, judge, largest, noise_floor

ONE_PROCESS = tuple(f"--{key}=1" for key in DEGREES.values())


@dataclass(frozen=True)
class Plan:
    """A layout that can run: the words that load its configuration, and what decides its numbers."""

    layout: Layout
    words: tuple[str, ...]
    numbers: str


@dataclass(frozen=True)
class LeftOut:
    """A layout of the default list that this model, batch or machine cannot take, and the rule that says so."""

    layout: Layout
    why: str


@dataclass(frozen=True)
class Row:
    """A line of the table: a layout, or the noise floor of an oracle.

    Attributes:
        name: of the layout.
        processes: how many.
        initial: whether the initial weights have the oracle's bits.
        findings: one a kind; none where it did not run to the end.
        error: the first error, with its rank and traceback.
        noise: whether it is a noise floor.
        seconds: wall clock.
    """

    name: str
    processes: int
    initial: bool
    findings: tuple[Finding, ...]
    error: str
    noise: bool
    seconds: float

    @property
    def failed(self) -> tuple[str, ...]:
        """What is beyond its limit, "initial" among it; "error" where it did not run."""
        if self.error:
            return ("error",)
        return (*(() if self.initial else ("initial",)), *(one.kind for one in self.findings if not one.within))


@dataclass(frozen=True)
class Setting:
    """What all layouts share.

    Attributes:
        path, words: the file and its overrides, less those of a layout.
        config: of one process.
        resolved: on one process.
        devices: type, and how many processes it can take, None for any.
    """

    path: str
    words: tuple[str, ...]
    config: Config
    resolved: Resolved
    devices: tuple[str, int | None]


def prepare(path: str, words: Sequence[str], folder: Path) -> Setting:
    """Loads the file for one process and prepares its data. Raises ConfigError, DataError."""
    from titan.data import prepare as prepare_data

    (devices,) = run_ranks(_devices, 1, fresh=True)
    fixed = [*words, *ONE_PROCESS]
    # Gradients are looked at, so they have to be there when the backward is over.
    fixed += [
        "--optimizer.early_step_in_backward=false",
        "--checkpoint.enable=false",
        f"--job.dump_folder={folder / 'run'}",
    ]
    config = load(path, fixed)
    if config.debug.seed is None:
        fixed.append(f"--debug.seed={secrets.randbits(31)}")
    batch = resolve(config, 1, devices[0]).batch
    fixed.append(f"--training.global_batch_size={batch.global_rows}")  # where it was -1, degrees would change it
    config = load(path, fixed)
    resolved = resolve(config, 1, devices[0])
    prepare_data(config.training, config.model)
    return Setting(path, tuple(fixed), config, resolved, devices)


def plan(setting: Setting, layouts: Sequence[Layout], *, named: bool) -> tuple[list[Plan], list[LeftOut]]:
    """Which layouts can run; the others with the rule's message. Those that the user named are refused instead, all
    at once, by ConfigError."""
    plans: list[Plan] = []
    left_out: list[LeftOut] = []
    for layout in layouts:
        words = (*setting.words, *layout.overrides(setting.resolved.batch.global_rows))
        try:
            config = _checked(setting, layout, words)
        except ConfigError as error:
            left_out.append(LeftOut(layout, str(error)))
        else:
            plans.append(Plan(layout, words, numerics_hash(config)))
    if named and left_out:
        problems = [Problem(one.layout.text, one.why, origin=OPTION) for one in left_out]
        raise ConfigError(problems)
    return plans, left_out


def _checked(setting: Setting, layout: Layout, words: Sequence[str]) -> Config:
    device, count = setting.devices
    if count is not None and layout.world_size > count:
        text = f"needs {layout.world_size} processes, one a {device} device, and there are {count}."
        raise ConfigError([Problem("", text)])
    config = load(setting.path, words)
    accumulation = resolve(config, layout.world_size, device).batch.accumulation
    if layout.accumulation not in (None, accumulation):
        batch = setting.resolved.batch.global_rows
        text = f"{batch} rows on {layout.batch_ranks} batch ranks cannot be taken in that many equal parts."
        raise ConfigError([Problem("accumulation", text, value=str(layout.accumulation))])
    return config


def run(
    setting: Setting, plans: Sequence[Plan], folder: Path, *, steps: int, fault: Fault | None, timeout: float
) -> Iterator[Row]:
    """A row for each oracle, its noise floor, before the first layout that it judges, and a row a layout."""
    oracles: dict[str, tuple[Path, OracleRun]] = {}
    for one in plans:
        if one.numbers not in oracles:
            record = folder / f"oracle-{len(oracles)}"
            record.mkdir()
            begun = time.monotonic()
            words = (*one.words, *ONE_PROCESS)  # the last word counts
            (oracle,) = _on_ranks(_oracle, 1, timeout, setting.path, words, record, steps)
            name = "noise floor" if not oracles else f"noise floor for {one.layout.text}"
            oracles[one.numbers] = record, oracle
            yield Row(name, 1, True, largest(noise_floor(oracle)), "", True, time.monotonic() - begun)
        yield _row(setting, one, *oracles[one.numbers], steps=steps, fault=fault, timeout=timeout)


def _row(
    setting: Setting, one: Plan, record: Path, oracle: OracleRun, *, steps: int, fault: Fault | None, timeout: float
) -> Row:
    begun, text, size = time.monotonic(), one.layout.text, one.layout.world_size
    try:
        ranks = _on_ranks(_layout, size, timeout, setting.path, one.words, record, steps, fault)
        found = differences(oracle, ranks)
    except (RankError, TimeoutError, ValueError) as error:
        return Row(text, size, False, (), str(error).strip(), False, time.monotonic() - begun)
    findings = judge(found, noise_floor(oracle), oracle.epsilon)
    return Row(text, size, found.initial, findings, "", False, time.monotonic() - begun)


def _on_ranks(function: Callable[..., Any], size: int, timeout: float, *args: Any) -> list[Any]:
    return run_ranks(
        function, size, *args, timeout=timeout, collective_timeout=timeout, fresh=True, threads=_threads(size)
    )


def _threads(processes: int) -> int:
    """OpenMP threads a process: the machine's cores shared out, unless OMP_NUM_THREADS says it."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # none on macOS
    return int(given) if given.isdecimal() and int(given) else max(1, cores // processes)


def _devices() -> tuple[str, int | None]:
    from titan.runtime import device_count, device_type

    kind = device_type()
    return kind, None if kind == "cpu" else device_count(kind)


def _oracle(path: str, words: Sequence[str], folder: Path, steps: int) -> OracleRun:
    from titan.parity import measure
    from titan.parity.record import Record

    return measure.run_oracle(_loaded(path, words), Record(folder), steps)


def _layout(path: str, words: Sequence[str], folder: Path, steps: int, fault: Fault | None) -> Measured:
    from titan.parity import measure
    from titan.parity.record import Record

    return measure.run_layout(_loaded(path, words), Record(folder), steps, fault=fault)


def _loaded(path: str, words: Sequence[str]) -> Config:
    """On a rank: the configuration, with what libraries print sent to a log."""
    from titan.runtime import log

    config = load(path, words)
    log.own_streams(config.job.dump_folder, int(os.environ["RANK"]))
    return config
