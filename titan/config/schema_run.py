"""Sections about the run as such: job, profiling, metrics, communication, debugging, extension points.

Names are those of torchtitan 0.2.2. Keys of features that this project does not have are here too, so that its files
load; `unsupported.py` refuses any value but the one that leaves them off.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from titan.config import durations
from titan.config.section import NonEmpty, NonNegativeInt, PositiveInt, Rule, Section


class Job(Section):
    """The run and where its files go."""

    config_file: str | None = None
    """The TOML file to read: on the command line only, `--job.config_file=F` for the argument F."""
    dump_folder: NonEmpty = "./outputs"
    """Folder of the run: config.toml, metrics.jsonl, tb/, checkpoint/, log/. Relative to the working directory."""
    time_limit: (
        Annotated[
            int,
            BeforeValidator(durations.seconds, json_schema_input_type=int | str),
            Field(ge=1),
            Rule('a number of seconds >= 1, or a duration such as "2h30m" (units d, h, m, s)'),
        ]
        | None
    ) = None
    """Wall-clock budget from the start of the launcher, restarts included, in seconds or as "2h30m". The run saves and
    stops, with exit code 75, while there is still time for another step and the save. Unset: none. Our own key."""
    description: str = "default job"
    """Free text, shown in the header and written to the run folder."""
    print_config: bool = False
    """Print the resolved configuration at the start."""
    save_config_file: str | None = None
    """Also write the resolved configuration as JSON, to this file in the run folder; config.toml is always there."""
    custom_config_module: str = ""
    """A module (`package.module`) whose class Config extends titan.config.Config: sections and keys of your own."""


class Profiling(Section):
    """Traces of the PyTorch profiler (Kineto), one JSON a rank and cycle."""

    enable_profiling: bool = False
    """Record traces."""
    save_traces_folder: NonEmpty = "profile_traces"
    """Folder of the traces, inside the run folder."""
    profile_freq: PositiveInt = 10
    """Steps from one recorded cycle to the next; at least profiler_warmup + profiler_active."""
    profiler_active: PositiveInt = 1
    """Steps recorded in each cycle."""
    profiler_warmup: NonNegativeInt = 3
    """Steps for which the profiler runs without recording, before the active ones."""
    enable_memory_snapshot: bool = False
    """Write the history of CUDA's allocator each `profile_freq` steps and when memory runs out, one pickle a rank, for
    https://docs.pytorch.org/memory_viz. Nothing on other devices."""
    save_memory_snapshot_folder: NonEmpty = "memory_snapshot"
    """Folder of those snapshots, inside the run folder."""


class Metrics(Section):
    """What is measured, how often, and where it is written."""

    log_freq: PositiveInt = 10
    """Steps from one logged step to the next; the first and the last step are always logged."""
    straggler_ratio: Annotated[float, Field(gt=1.0)] = 1.5
    """Name the slowest rank in the log where its time a block is more than this times the median. Our own key."""
    enable_tensorboard: bool = False
    """Write TensorBoard event files."""
    enable_jsonl: bool = True
    """Write metrics.jsonl, one JSON object a logged step with full-precision numbers. Our own key."""
    disable_color_printing: bool = False
    """Print without colors."""
    save_tb_folder: NonEmpty = "tb"
    """Folder of the TensorBoard files, inside the run folder."""
    save_for_all_ranks: bool = False
    """Write from every rank, metrics.rank-N.jsonl and rank-N/ beside rank 0's files: losses are the job's, memory and
    clocks the rank's own."""
    enable_wandb: bool = False
    """Log to Weights & Biases, as the WANDB_* variables say (WANDB_MODE=offline without a network); needs the package
    wandb."""


class Comm(Section):
    """Timeouts of collectives and tracing of the process groups."""

    init_timeout_seconds: PositiveInt = 300
    """Timeout of collectives until the first step is done, in seconds."""
    train_timeout_seconds: PositiveInt = 100
    """Timeout of collectives after the first step, in seconds."""
    trace_buf_size: NonNegativeInt = 20000
    """Collectives that each rank's flight recorder remembers for the dump at a hang; 0: none. An environment that sets
    TORCH_FR_BUFFER_SIZE wins."""
    save_traces_folder: NonEmpty = "comm_traces"
    """Folder of the flight recorder's dumps, inside the run folder."""
    save_traces_file_prefix: str = "rank_"
    """What the names of those files begin with; the rank follows."""
    mode: Literal["default", "fake_backend", "local_tensor"] = "default"
    """default: real process groups. fake_backend: a dry run of rank 0 in one process, a few steps with collectives that
    do nothing. local_tensor is not supported."""


class Debug(Section):
    """Seed and determinism."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Seed of the initial weights and of the data order; without one, one is drawn, shared by all ranks and saved."""
    replica_audit_freq: NonNegativeInt = 0
    """Steps from one comparison of all replicated state (weights, optimizer, counters, RNG) between ranks to the next;
    0: never. A difference ends the run and names rank and tensor. Our own key."""
    deterministic: bool = False
    """Use deterministic algorithms only (torch.use_deterministic_algorithms); an operation that has none raises."""
    deterministic_warn_only: bool = False
    """With `deterministic`: warn about operations that have no deterministic algorithm instead of raising."""
    moe_force_load_balance: bool = False
    """Not supported: there is no mixture of experts."""


class Experimental(Section):
    """Extension points."""

    custom_import: str = ""
    """A module (`package.module`) imported at the start, to register models of your own."""
    custom_args_module: str = ""
    """Older name of `job.custom_config_module`."""


class MemoryEstimation(Section):
    """Not supported: estimation of memory by a dry run."""

    enable: bool = False
    """Not supported."""
    disable_fake_mode: bool = False
    """Not supported."""


class FaultTolerance(Section):
    """Not supported: torchft. Restarts from a checkpoint are (MAX_RESTARTS)."""

    enable: bool = False
    """Not supported."""
    process_group: str = "gloo"
    """Not supported."""
    process_group_timeout_ms: PositiveInt = 10000
    """Not supported."""
    replica_id: NonNegativeInt = 0
    """Not supported."""
    group_size: NonNegativeInt = 0
    """Not supported."""
    min_replica_size: PositiveInt = 1
    """Not supported."""
    semi_sync_method: str | None = None
    """Not supported."""
