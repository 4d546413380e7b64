"""manifest.json: each file of a checkpoint with its size and checksums, and over all of that a checksum of its own.

A file has one xxh3_128 for each 16 MiB, computed while it is written: so that one big file is verified by every core,
and damage has a place. The manifest's bytes are a function of its content, and the last field is the checksum of the
rest: no bit of it can change unseen, not even a blank. Format 1, before there were checksums, is read by its sizes.
No torch here: `titan checkpoint verify` needs none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

FORMAT = 2
READABLE = (1, 2)
MANIFEST = "manifest.json"
STATE = "state.json"
METADATA = ".metadata"
BLOCK = 16 * 2**20
_SUM = "xxh3_128"


class Damaged(ValueError):
    """What is wrong with a manifest or a file, to follow its name."""


@dataclass(frozen=True)
class Entry:
    """A file: its size in bytes, and hexadecimal xxh3_128 of each block; None in format 1."""

    size: int
    sums: tuple[str, ...] | None


@dataclass(frozen=True)
class Manifest:
    format: int
    step: int
    files: Mapping[str, Entry]


class Checksum:
    """Computes the entry of a file from its bytes, in pieces of any length."""

    def __init__(self) -> None:
        self.size = 0
        self._done: list[str] = []
        self._block = xxhash.xxh3_128()

    def update(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            part = rest[: BLOCK - self.size % BLOCK]
            self._block.update(part)
            self.size += len(part)
            rest = rest[len(part) :]
            if self.size % BLOCK == 0:
                self._done.append(self._block.hexdigest())
                self._block = xxhash.xxh3_128()

    def entry(self) -> Entry:
        """One checksum even for an empty file; none for an empty last block."""
        last = () if self._done and self.size % BLOCK == 0 else (self._block.hexdigest(),)
        return Entry(self.size, (*self._done, *last))


def entry_of(data: bytes) -> Entry:
    checksum = Checksum()
    checksum.update(data)
    return checksum.entry()


def differences(data: bytes, entry: Entry) -> str | None:
    """What differs between a file's content and its entry, or None."""
    found = entry_of(data)
    if found.size != entry.size:
        return f"has {found.size} bytes, the manifest says {entry.size}"
    if entry.sums is not None and found.sums != entry.sums:
        return "differs from its checksum"
    return None


def to_bytes(step: int, files: Mapping[str, Entry]) -> bytes:
    """Text of manifest.json."""
    table = {name: {"bytes": one.size, _SUM: list(one.sums or ())} for name, one in sorted(files.items())}
    return _sealed({"format": FORMAT, "step": step, "block_bytes": BLOCK, "files": table})


def parse(data: bytes) -> Manifest:
    """The manifest in the text of manifest.json.

    Raises:
        Damaged: it is not one of ours, or a bit of it has changed.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise Damaged("is damaged: it is not JSON") from None
    number = content.get("format") if isinstance(content, dict) else None
    if number == FORMAT:
        found = content.pop(_SUM, None)
        if not isinstance(found, str) or _sealed(content) != data:
            raise Damaged("is damaged: it differs from its own checksum")
        if content.get("block_bytes") != BLOCK:
            raise Damaged(f"is damaged: its blocks have {content.get('block_bytes')} bytes, not {BLOCK}")
    elif number not in READABLE:
        raise Damaged(f"has format {number}, this version reads {' and '.join(map(str, READABLE))}")
    table = content.get("files") if isinstance(content, dict) else None
    step = content.get("step") if isinstance(content, dict) else None
    if not isinstance(table, dict) or not {STATE, METADATA} <= set(table) or not isinstance(step, int):
        raise Damaged("is damaged: it lists no checkpoint")
    return Manifest(int(number), step, {name: _entry(name, one, number) for name, one in table.items()})


def is_plain_name(name: Any) -> bool:
    """Whether it names a file directly in a folder: no path, no way up."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}


def _entry(name: str, one: Any, number: int) -> Entry:
    if not is_plain_name(name):
        raise Damaged(f"is refused: it names {name!r}, outside of the folder")
    size, sums = (one.get("bytes"), one.get(_SUM)) if isinstance(one, dict) else (None, None)
    if not isinstance(size, int):
        raise Damaged(f"is damaged: {name} has no size")
    if number == 1:
        return Entry(size, None)
    if not isinstance(sums, list) or len(sums) != max(1, -(-size // BLOCK)):
        raise Damaged(f"is damaged: {name} has no checksums")
    return Entry(size, tuple(sums))


def _sealed(content: Mapping[str, Any]) -> bytes:
    digest = xxhash.xxh3_128_hexdigest(json.dumps(content, indent=1).encode())
    return json.dumps({**content, _SUM: digest}, indent=1).encode()
