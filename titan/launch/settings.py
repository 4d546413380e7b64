"""What the environment says about a launch: how many processes and nodes, and where the nodes meet.

The names are those that torchrun's flags have in most job scripts. All problems are reported at once, as those of the
configuration are; what is set but empty counts as not set, since job scripts write `NNODES=$SOMETHING`.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from titan.config.problems import ConfigError, Problem, closest

NUMA_MODES = ("node", "socket", "exclusive", "core-complex")


@dataclass(frozen=True)
class Settings:
    """A launch, as far as the environment decides it.

    Attributes:
        processes: on this node (NPROC); None: as many as the configuration and the devices say.
        nodes: number of launchers that make up the run (NNODES), each started with the same command.
        endpoint: host:port where they meet (RDZV_ENDPOINT); on one node a free port of this machine.
        run_id: tells runs at one endpoint apart (RDZV_ID); on one node a new one.
        rendezvous_seconds: how long to wait for the other nodes (RDZV_TIMEOUT).
        max_restarts: how often workers are started again after a failure (MAX_RESTARTS).
        numa_binding: bind workers to the CPUs near their accelerator (NUMA_BINDING), one of `NUMA_MODES`.
        local_address: how the other nodes reach this one (LOCAL_ADDR); None: its host name.
        began: when the launch began, in seconds since the epoch: `job.time_limit` counts from here.
    """

    processes: int | None
    nodes: int
    endpoint: str
    run_id: str
    rendezvous_seconds: int
    max_restarts: int
    numa_binding: str | None
    local_address: str | None
    began: float = field(default_factory=time.time)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Raises ConfigError with all problems."""
        given = os.environ if environment is None else environment
        problems: list[Problem] = []
        nodes = _number(given, "NNODES", 1, 1, problems)
        endpoint = given.get("RDZV_ENDPOINT") or ""
        if nodes > 1 and not endpoint:
            text = f"must be host:port of one of the {nodes} nodes, the same on all, since NNODES = {nodes}."
            problems.append(_problem("RDZV_ENDPOINT", text))
        if nodes > 1 and endpoint and not _is_endpoint(endpoint):
            problems.append(_problem("RDZV_ENDPOINT", "must be host:port, as in node0:29400.", endpoint))
        numa = given.get("NUMA_BINDING") or None
        if numa is not None and numa not in NUMA_MODES:
            near = closest(numa, NUMA_MODES) or NUMA_MODES[0]
            problems.append(_problem("NUMA_BINDING", f"one of {', '.join(NUMA_MODES)}; {near}?", numa))
        processes = _number(given, "NPROC", 0, 1, problems) or None
        restarts = _number(given, "MAX_RESTARTS", 0, 0, problems)
        seconds = _number(given, "RDZV_TIMEOUT", 600, 1, problems)
        if problems:
            raise ConfigError(problems)
        local = given.get("LOCAL_ADDR") or None
        if nodes == 1:
            # Port 0 is a free one and the id a new one, so that two runs at once share nothing; the loopback address
            # needs no name service, which containers often lack.
            endpoint, local, run_id = "localhost:0", local or "127.0.0.1", uuid.uuid4().hex
        else:
            if endpoint.rsplit(":", 1)[0] in ("localhost", "127.0.0.1"):
                local = local or "127.0.0.1"
            run_id = given.get("RDZV_ID") or given.get("SLURM_JOB_ID") or "titan"
        return cls(processes, nodes, endpoint, run_id, seconds, restarts, numa, local)

    def check_device(self, kind: str) -> None:
        """Raises ConfigError where a setting cannot work with this type of device."""
        if self.numa_binding and kind == "cpu":
            text = "binds a process to the CPUs near its accelerator, and this run uses none; leave it out."
            raise ConfigError([_problem("NUMA_BINDING", text, self.numa_binding)])


def _number(given: Mapping[str, str], name: str, default: int, least: int, problems: list[Problem]) -> int:
    text = given.get(name)
    if not text:
        return default
    if text.isdecimal() and int(text) >= least:
        return int(text)
    problems.append(_problem(name, f"must be a whole number of at least {least}.", text))
    return default


def _is_endpoint(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65536


def _problem(name: str, text: str, value: str | None = None) -> Problem:
    return Problem(name, text, value=value, origin="environment")
