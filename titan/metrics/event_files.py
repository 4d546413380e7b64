"""TensorBoard event files cut back to a step, so that every reader sees one value a step after a resume.

TensorBoard itself drops what a `purge_step` makes obsolete; other readers do so for float32 scalars only (tensorboard
2.21: `EventAccumulator` keeps both values of a tensor-valued one), and scalars with all digits are tensor-valued. So
the records of later steps are taken out of the files. A record is: length (8 bytes), its checksum (4), an Event proto,
its checksum (4); those that stay are copied byte by byte.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

PATTERN = "events.out.tfevents.*"
_BEFORE, _AFTER = 12, 4


def keep_events_until(folder: Path, step: int) -> None:
    """Drops summaries of later steps, and a last record that a crash cut off, from the event files in `folder`.

    A file with nothing left is removed; one with nothing to drop is not touched; the others are replaced in one
    rename.
    """
    from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]

    for path in sorted(folder.glob(PATTERN)):
        content = path.read_bytes()
        kept, summaries = [], 0
        for record in _records(content):
            event = Event.FromString(record[_BEFORE:-_AFTER])
            is_summary = event.HasField("summary")
            if is_summary and event.step > step:
                continue
            kept.append(record)
            summaries += is_summary
        remaining = b"".join(kept)
        if not summaries:
            path.unlink()
        elif len(remaining) < len(content):
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_bytes(remaining)
            temporary.replace(path)


def _records(content: bytes) -> Iterator[bytes]:
    position = 0
    while position + _BEFORE <= len(content):
        (length,) = struct.unpack_from("<Q", content, position)
        end = position + _BEFORE + length + _AFTER
        if end > len(content):  # cut off
            return
        yield content[position:end]
        position = end
