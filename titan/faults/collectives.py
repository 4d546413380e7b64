"""torch's flight recorder: the collectives that this process has entered and not left, and the dump of all of them.

The recorder is private in torch 2.13 (`_dump_fr_trace*`; `_dump_nccl_trace*` where NCCL is built in) and is used here
only. Both backends fill it: gloo marks what has ended as retired, NCCL as completed. Settings are read when the first
process group is made (https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titan.config.schema_run import Comm

_NAMES = ("_dump_fr_trace", "_dump_nccl_trace")


@dataclass(frozen=True)
class Pending:
    """A collective that was entered and has not ended.

    Attributes:
        name: with the backend, "gloo:all_reduce".
        group: description of the process group, such as "mesh_tp".
        sequence: its number in the group: peers in the same collective have the same.
        sizes: of the inputs.
        since: when it was entered, in nanoseconds since the epoch.
    """

    name: str
    group: str
    sequence: int
    sizes: str
    since: int

    def __str__(self) -> str:
        return f"{self.name} number {self.sequence} of group {self.group}, sizes {self.sizes}"


def traces_path(comm: Comm, folder: Path, rank: int) -> Path | None:
    """Where this rank's dump goes; None where the recorder is off."""
    if comm.trace_buf_size == 0:
        return None
    return folder / comm.save_traces_folder / f"{comm.save_traces_file_prefix}{rank}"


def configure_recorder(comm: Comm, folder: Path) -> None:
    """Sets the recorder's environment; before the first process group. What the user has set stays."""
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in os.environ:  # the older name; torch prefers the newer one
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(comm.trace_buf_size))
    path = traces_path(comm, folder, 0)
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # NCCL's own watchdog writes there too, when it gives up; it appends the rank.
    os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(path.with_name(comm.save_traces_file_prefix).absolute()))
    os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", os.environ["TORCH_FR_DUMP_TEMP_FILE"])
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")


def pending() -> list[Pending]:
    """What this process waits for, oldest first; nothing where the recorder is off."""
    entries: list[dict[str, Any]] = []
    for call in _calls("_json"):
        entries += json.loads(call()).get("entries", [])
    found = [
        Pending(
            name=one["profiling_name"],
            group=one["process_group"][1] if one["process_group"][1] != "undefined" else one["process_group"][0],
            sequence=one["p2p_seq_id"] if one["is_p2p"] else one["collective_seq_id"],
            sizes=str(one["input_sizes"] or one["output_sizes"]),
            since=one["time_created_ns"],
        )
        for one in entries
        if not one["retired"] and one["state"] != "completed"
    ]
    return sorted(found, key=lambda one: one.since)


def dump(path: Path) -> None:
    """Writes the recorder's pickle, of the first recorder that holds something."""
    for call in _calls(""):
        content = call()
        if content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            return


def _calls(suffix: str) -> list[Any]:
    import torch.distributed as dist

    if not dist.is_available():
        return []
    from torch._C import _distributed_c10d as native

    # NCCL's first: on a CUDA build the other one holds gloo's collectives alone.
    return [getattr(native, name + suffix) for name in reversed(_NAMES) if hasattr(native, name + suffix)]
