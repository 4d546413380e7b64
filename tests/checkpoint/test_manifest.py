"""The manifest: it lists every file with size and checksums, any change of it shows, and format 1 is still read."""

from __future__ import annotations

import json
import os

import pytest
import xxhash

from tests.checkpoint.toy import manager, model, optimizer_of, saved
from titan.checkpoint.folders import incomplete
from titan.checkpoint.manifest import (
    BLOCK,
    Checksum,
    Damaged,
    Entry,
    differences,
    entry_of,
    is_plain_name,
    parse,
    to_bytes,
)

pytestmark = pytest.mark.quick
FILES = {".metadata": entry_of(b"index"), "state.json": entry_of(b"{}"), "__0_0.distcp": entry_of(b"values")}


def test_a_save_lists_every_file_with_size_and_checksum(tmp_path):
    saved(tmp_path, [1])
    folder = tmp_path / "step-1"
    manifest = parse((folder / "manifest.json").read_bytes())
    assert (manifest.step, manifest.format) == (1, 2)
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}
    assert {name: (one.size, one.sums) for name, one in manifest.files.items()} == {
        name: (len(data), (xxhash.xxh3_128_hexdigest(data),)) for name, data in files.items()
    }


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 5])
def test_checksums_are_those_of_the_blocks_however_the_bytes_come(size):
    data = os.urandom(size)
    blocks = [data[start : start + BLOCK] for start in range(0, max(1, size), BLOCK)]
    wanted = Entry(size, tuple(xxhash.xxh3_128_hexdigest(block) for block in blocks))
    in_parts = Checksum()
    for start in range(0, size, 3_000_017):
        in_parts.update(data[start : start + 3_000_017])
    assert entry_of(data) == in_parts.entry() == wanted
    assert parse(to_bytes(4, {**FILES, "x": wanted})).files["x"] == wanted


def test_a_flip_of_any_bit_of_a_manifest_is_found():
    whole = to_bytes(3, FILES)
    assert parse(whole).files == FILES
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            parse(bytes(flipped))


@pytest.mark.parametrize(
    "change", [lambda one: one + b"\n", lambda one: one[:-1], lambda one: b" " + one, lambda _: b""]
)
def test_more_or_fewer_bytes_are_found(change):
    with pytest.raises(Damaged):
        parse(change(to_bytes(3, FILES)))


def test_names_that_leave_the_folder_are_refused():
    for name in ("../x", "/etc/passwd", "a/b", "..", ""):
        with pytest.raises(Damaged, match="outside of the folder"):
            parse(to_bytes(1, {**FILES, name: entry_of(b"")}))
    for name in ("", ".", "..", "a/b", "/a", "a\\b", "a\0", None, 3):
        assert not is_plain_name(name)


def test_a_newer_format_is_named():
    with pytest.raises(Damaged, match="has format 3, this version reads 1 and 2"):
        parse(b'{"format": 3}')


@pytest.mark.parametrize("text", ["[]", "null", "1", "[" * 100_000, '{"format": 1}', '{"format": {}}', "\xff"])
def test_anything_else_is_damaged(text):
    with pytest.raises(Damaged):
        parse(text.encode("latin-1"))


def test_format_1_is_read_by_its_sizes(tmp_path):
    saved(tmp_path, [1])
    folder = tmp_path / "step-1"
    sizes = {path.name: {"bytes": path.stat().st_size} for path in folder.iterdir() if path.name != "manifest.json"}
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "step": 1, "files": sizes}, indent=1))
    assert incomplete(folder, 1) is None
    part = model()
    assert manager(tmp_path, part, optimizer_of(part)).load()["step"] == 1
    (folder / "__0_0.distcp").write_bytes(b"short")
    assert "has 5 bytes" in incomplete(folder, 1)


def test_what_differs_is_said():
    assert differences(b"abc", entry_of(b"abc")) is None
    assert differences(b"abd", entry_of(b"abc")) == "differs from its checksum"
    assert differences(b"ab", entry_of(b"abc")) == "has 2 bytes, the manifest says 3"
    assert differences(b"abd", Entry(3, None)) is None
