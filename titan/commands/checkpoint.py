"""`titan checkpoint list | show | verify PATH`: what checkpoints there are, what one holds, and whether they are whole.

PATH is a run folder, a checkpoint folder or one step, also behind an fsspec URI. Exit codes: 0; 1 where verify found
something wrong; 2 where there is nothing to look at, or it is refused. `list` and `verify` import no torch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from titan.runtime.errors import DONE, FAILED


def main(argv: Sequence[str]) -> int:
    """Runs one of the three; returns the exit code."""
    from titan.checkpoint.errors import CheckpointError

    parser = argparse.ArgumentParser(prog="titan checkpoint", description="Look at checkpoints.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", metavar="list|show|verify", required=True)
    for name, work, told in (
        ("list", _list, "step, time, size, layout and tokens of each, and why one is not complete"),
        ("show", _show, "keys, shapes and dtypes of one (of a folder: the newest complete one)"),
        ("verify", _verify, "read every byte and compare it with the checksums"),
    ):
        one = commands.add_parser(name, help=told, description=told.capitalize() + ".", allow_abbrev=False)
        one.add_argument("path", metavar="PATH", help="a run folder, a checkpoint folder, or one step-N; may be a URI")
        one.add_argument("--json", action="store_true", help="print JSON")
        one.set_defaults(work=work)
    options = parser.parse_args(argv)
    try:
        code: int = options.work(options.path, options.json)
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"{options.path} cannot be read: {error}", file=sys.stderr)
        return FAILED
    return code


def _list(path: str, as_json: bool) -> int:
    from titan.checkpoint.inventory import checkpoint_folder, rows

    folder = checkpoint_folder(path)
    found = rows(folder)
    if as_json:
        _print_json([row.as_dict() for row in found])
        return DONE
    if not found:
        print(f"no checkpoints in {folder}")
        return DONE
    lines = [("step", "written (UTC)", "size", "tokens", "saved at", "")]
    for row in found:
        step = "" if row.step is None else str(row.step)
        tokens = "" if row.tokens is None else f"{row.tokens:,}"
        note = "weights alone" if row.weights_only else ""
        note = note if row.reason is None else f"{row.path.rsplit('/', 1)[-1]} is not complete: {row.reason}"
        lines.append((step, row.written or "", _size(row.bytes), tokens, row.layout or "", note))
    print(folder)
    _print_table(lines, right={0, 2, 3})
    return DONE


def _show(path: str, as_json: bool) -> int:
    from titan.checkpoint.contents import contents
    from titan.checkpoint.errors import CheckpointRefused
    from titan.checkpoint.folders import complete_steps, step_name
    from titan.checkpoint.inventory import checkpoint_folder, is_checkpoint

    folder = checkpoint_folder(path)
    if not is_checkpoint(folder):
        steps = complete_steps(folder)
        if not steps:
            raise CheckpointRefused(f"{folder} holds no complete checkpoint: `titan checkpoint list {path}` says why")
        folder = folder / step_name(steps[-1])
    found = contents(folder)
    if as_json:
        _print_json(found.as_dict())
        return DONE
    print(found.path)
    for key, value in dict(_facts(found.state)).items():
        print(f"  {key:<14} {value}")
    print(f"  {'files':<14} {len(found.files)}, {_size(sum(found.files.values()))}")
    for part, total in found.totals.items():
        print(f"  {part:<14} {total['tensors']} tensors, {total['values']:,} values, {_size(total['bytes'])}")
    lines = [("key", "shape", "dtype", "boxes", "size")]
    lines += [(one.key, str(one.shape), one.dtype, str(one.boxes), _size(one.bytes)) for one in found.tensors]
    _print_table(lines, right={3, 4})
    return DONE


def _facts(state: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """What state.json says, without the configuration."""
    facts: list[tuple[str, Any]] = []
    for key, value in state.items():
        if isinstance(value, dict):
            facts += _facts(value, f"{key} " if key == "fingerprints" else "")
        elif key != "config" or prefix:
            facts.append((prefix + key, value))
    return facts


def _verify(path: str, as_json: bool) -> int:
    from titan.checkpoint.errors import CheckpointRefused
    from titan.checkpoint.inventory import checkpoint_folder, checkpoints
    from titan.checkpoint.verify import verify

    folder = checkpoint_folder(path)
    every = checkpoints(folder)
    if not every:
        raise CheckpointRefused(f"{folder} holds no checkpoint to verify")
    results: list[dict[str, Any]] = []
    for one in every:
        started = time.monotonic()
        result = verify(one)
        results.append({"path": str(one), **result.as_dict()})
        if as_json:
            continue
        if result.problems:
            print(f"{one}: damaged")
            for problem in result.problems:
                print(f"  {problem}")
        else:
            note = "" if result.checksums else "; sizes alone, format 1 has no checksums"
            seconds = time.monotonic() - started
            print(f"{one}: whole, {result.files} files, {_size(result.bytes)} in {seconds:.1f} s{note}")
    if as_json:
        _print_json(results)
    return FAILED if any(result["problems"] for result in results) else DONE


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


def _print_table(lines: Sequence[tuple[str, ...]], right: set[int]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            f"{cell:>{w}}" if n in right else f"{cell:<{w}}"
            for n, (cell, w) in enumerate(zip(line, widths, strict=True))
        ]
        print(f"  {'  '.join(cells)}".rstrip())


def _size(size: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024  # type: ignore[assignment]
    return f"{size} B" if unit == "B" else f"{size:.1f} {unit}"
