"""Starts the processes of a run on this machine: `python -m titan.launch CONFIG [--section.key=value ...]`.

A thin layer over torch's elastic agent, which is what torchrun runs too. It refuses before any process exists what
can be refused, prepares the data before any process group waits for it, hands signals on to the workers, and ends
with the first error as its last words. Exit codes are those of `titan.runtime.errors`; nothing is left running.

Environment: NPROC, NNODES, RDZV_ENDPOINT, RDZV_ID, RDZV_TIMEOUT, MAX_RESTARTS, NUMA_BINDING, LOCAL_ADDR,
OMP_NUM_THREADS, TITAN_DEVICE (see `settings.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from titan.launch.early import stop_at_once, unless_stopped


def main(argv: Sequence[str], *, worker: Sequence[str] = ("-m", "titan", "train")) -> int:
    """Launches a run and returns its exit code.

    Args:
        argv: CONFIG and overrides.
        worker: arguments of Python that start one worker, before those of `argv`; the tests' own workers.
    """

    def launch() -> int:
        from titan.launch import command

        return command.main(argv, worker=worker)

    with stop_at_once():
        return unless_stopped(launch)
