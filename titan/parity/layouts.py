"""Layouts by short names: `pp=2,schedule=DualPipeV`, several separated by `;`, and the list that is run by default.

A layout says how one run is cut, so it begins with all degrees at 1, whatever the file says; a name with a dot is any
other key of the configuration. Plain text to plain words for `titan.config.load`: no torch, and no rule of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from titan.config.problems import ConfigError, Problem, closest
from titan.config.schema_parallelism import Schedule

DEGREES = {
    "pp": "parallelism.pipeline_parallel_degree",
    "dp_replicate": "parallelism.data_parallel_replicate_degree",
    "dp_shard": "parallelism.data_parallel_shard_degree",
    "cp": "parallelism.context_parallel_degree",
    "tp": "parallelism.tensor_parallel_degree",
}
SHORT = {
    **DEGREES,
    "schedule": "parallelism.pipeline_parallel_schedule",
    "microbatch": "parallelism.pipeline_parallel_microbatch_size",
    "rotate": "parallelism.context_parallel_rotate_method",
    "balance": "parallelism.context_parallel_load_balancer",
    "reshard": "parallelism.fsdp_reshard_after_forward",
    "local_batch": "training.local_batch_size",
    "ac": "activation_checkpoint.mode",
    "compile": "compile.enable",
}
"""Short name to key. `accumulation` is read too: it becomes a local batch, once the batch is known."""
ACCUMULATION = "accumulation"
OPTION = "--layouts"
ALONE = "one process"
"""The layout with all degrees at 1: the trainer beside the plain loop of the oracle."""


@dataclass(frozen=True)
class Layout:
    """One layout of the list.

    Attributes:
        text: as written.
        settings: key to value, as text; all five degrees are in it.
        accumulation: accumulation steps that were asked for, or None.
    """

    text: str
    settings: tuple[tuple[str, str], ...]
    accumulation: int | None = None

    @property
    def batch_ranks(self) -> int:
        """Ranks that read different rows."""
        given = dict(self.settings)
        return int(given[DEGREES["dp_replicate"]]) * int(given[DEGREES["dp_shard"]])

    @property
    def world_size(self) -> int:
        given = dict(self.settings)
        size = 1
        for key in DEGREES.values():
            size *= int(given[key])
        return size

    def overrides(self, global_rows: int) -> list[str]:
        """Words for `titan.config.load`; `global_rows` is the batch of the run."""
        words = [f"--{key}={value}" for key, value in self.settings]
        if self.accumulation is not None:
            words.append(f"--{SHORT['local_batch']}={max(1, global_rows // (self.batch_ranks * self.accumulation))}")
        return words


def parse(texts: Iterable[str]) -> list[Layout]:
    """The layouts of `--layouts` options, each with layouts separated by `;`, in order and each once.

    Raises ConfigError with every item that cannot be read, or where there is none.
    """
    problems: list[Problem] = []
    given = [part.strip() for text in texts for part in text.split(";")]
    found = {text: _layout(text, problems) for text in given if text}
    if not found:
        problems.append(_problem("", f'names no layout: write some, as in "tp=2; pp=2" or "{ALONE}".'))
    if problems:
        raise ConfigError(problems)
    return list(found.values())


def _layout(text: str, problems: list[Problem]) -> Layout:
    settings = dict.fromkeys(DEGREES.values(), "1")
    accumulation = None
    items = [] if text == ALONE else text.split(",")
    for item in filter(None, (part.strip() for part in items)):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not value:
            problems.append(_problem(item, "a layout is name=value, name=value, ..., as in tp=2,pp=2."))
        elif name in (*DEGREES, ACCUMULATION) and not (value.isdecimal() and int(value) > 0):
            problems.append(_problem(item, "must be a whole number of at least 1."))
        elif name == ACCUMULATION:
            accumulation = int(value)
        elif name == "compile" and value not in ("true", "false"):
            settings |= {SHORT[name]: "true", "compile.backend": value}
        elif name in SHORT:
            settings[SHORT[name]] = value
        elif "." in name:
            settings[name] = value
        else:
            near = closest(name, [*SHORT, ACCUMULATION])
            hint = f"; did you mean {near}?" if near else "."
            text_ = f"no such short name: there are {', '.join([*SHORT, ACCUMULATION])}, and any key with a dot{hint}"
            problems.append(_problem(item, text_))
    return Layout(text, tuple(settings.items()), accumulation)


def _problem(item: str, text: str) -> Problem:
    return Problem(item, text, origin=OPTION)


def _default() -> Sequence[str]:
    schedules = get_args(Schedule)
    methods = ("allgather", "alltoall", "ulysses")
    return (
        ALONE,
        "accumulation=4",
        "dp_shard=2",
        "dp_replicate=2",
        "dp_shard=2,accumulation=2",
        "tp=2",
        *(f"cp=2,rotate={method}" for method in methods),
        *(f"pp=2,schedule={schedule}" for schedule in schedules),
        "dp_shard=4",
        "dp_replicate=2,dp_shard=2",
        "dp_shard=2,tp=2",
        "dp_shard=2,cp=2",
        "cp=2,tp=2,rotate=alltoall",
        "pp=2,tp=2,schedule=Interleaved1F1B",
        "pp=2,cp=2,schedule=DualPipeV",
        "pp=2,dp_shard=2,schedule=1F1B",
        "pp=2,dp_replicate=2,schedule=ZBVZeroBubble",
        "dp_replicate=2,dp_shard=2,tp=2",
        "dp_shard=2,cp=2,tp=2,rotate=ulysses",
        "pp=2,dp_shard=2,tp=2,schedule=InterleavedZeroBubble",
        "pp=2,cp=2,tp=2,schedule=ZBVZeroBubble",
    )


DEFAULT = _default()
"""Every parallelism, every schedule, and mixes of two and three on at most eight processes; the smallest first."""
