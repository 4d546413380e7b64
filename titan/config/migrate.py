"""Rewrites a file of older names into one of today's, comments and order kept, and says what it did.

Names are changed in their line where the section stays the same; what moves to another section goes to its end. Values
that mean the same in other words are computed (microbatches, split points, opposites). What has no counterpart stays,
and is named: nothing is dropped without a word.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import tomlkit
from tomlkit.items import Item

from titan.config.lines import line_numbers
from titan.config.old_names import COMPUTED, GONE, INVERSE, SAME
from titan.config.schema import Config
from titan.config.schema_model import Model
from titan.config.toml_text import value_text
from titan.config.validate import known_part

_LOCAL_BATCH = 8
"""torchtitan's default of the local batch, which a file of its users means where it says none."""


@dataclass
class Migrated:
    """A rewritten file.

    Attributes:
        text: the file.
        changes: what was changed, a line each.
        left: what has no counterpart and stands as it stood, a line each.
    """

    text: str
    changes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def migrate(text: str) -> Migrated:
    """Raises tomllib.TOMLDecodeError (a ValueError) where the text is not TOML."""
    before = tomllib.loads(text)
    done = Migrated(_rename_in_place(text, before))
    document = tomlkit.parse(done.text)
    for old, new in SAME.items():
        if (value := _at(before, old)) is not None:
            if _section(old) != _section(new) or _at(before, new) is not None:
                _move(document, old, new, done)
            else:
                done.changes.append(f"{old} -> {new}")
            if old == "model.tokenizer_path":
                done.left.append(f"{new} = {value_text(value)}: a folder with tokenizer.json, no longer a file")
    for old, new in INVERSE.items():
        if isinstance(value := _at(before, old), bool):
            _replace(document, old, new, not value, done)
    for old in GONE:
        value = _at(before, old)
        if value is None:
            continue
        if old == "checkpoint.interval_type" and value != "steps":
            done.left.append(f"{old} = {value_text(value)}: checkpoint.interval is in steps; set it anew")
            continue
        _remove(document, old)
        done.changes.append(f"{old} removed: {GONE[old].removeprefix('gone: ').removesuffix(' Delete this line.')}")
    _computed(document, before, done)
    done.text = tomlkit.dumps(document)
    _, problems = known_part(Config, _without_extends(tomllib.loads(done.text)), "", {})
    told = {line.partition(" = ")[0] for line in done.left}
    done.left += [f"{problem.key}: {problem.text}" for problem in problems if problem.key not in told]
    return done


def _rename_in_place(text: str, values: dict[str, Any]) -> str:
    lines, numbers = text.splitlines(keepends=True), line_numbers(text)
    for old, new in SAME.items():
        same = _section(old) == _section(new) and _at(values, old) is not None and _at(values, new) is None
        if same and old in numbers:
            name, line = old.rpartition(".")[2], numbers[old] - 1
            lines[line] = re.sub(rf"""\b{name}(?=["']?\s*=)""", new.rpartition(".")[2], lines[line], count=1)
    return "".join(lines)


def _computed(document: tomlkit.TOMLDocument, before: dict[str, Any], done: Migrated) -> None:
    for old in COMPUTED:
        value = _at(before, old)
        if value is None:
            continue
        if old.endswith("microbatches"):
            local = _at(before, "training.batch_size") or _at(before, "training.local_batch_size") or _LOCAL_BATCH
            if isinstance(value, int) and value > 0 and local % value == 0:
                new = "parallelism.pipeline_parallel_microbatch_size"
                _replace(document, old, new, local // value, done)
            else:
                done.left.append(f"{old} = {value_text(value)}: does not divide the local batch of {local} rows")
        elif old.endswith("split_points"):
            parts = _parts(before, value)
            if parts is None:
                done.left.append(f"{old} = {value_text(value)}: name the modules of each stage instead")
            else:
                _replace(document, old, "parallelism.module_fqns_per_model_part", parts, done)
        elif old.startswith("optimizer."):
            if old == "optimizer.foreach" and _at(before, "optimizer.fused"):
                _remove(document, old)
                continue
            names = {"optimizer.fused": ("fused", "foreach"), "optimizer.foreach": ("foreach", "for-loop")}[old]
            _replace(document, old, "optimizer.implementation", names[0] if value else names[1], done)
        elif value:  # float8.enable_float8_linear
            converters = [*(_at(before, "model.converters") or []), "quantize.linear.float8"]
            _replace(document, old, "model.converters", converters, done)
        else:
            _remove(document, old)
            done.changes.append(f"{old} = false removed: there is no such converter unless it is named")


def _parts(values: dict[str, Any], points: Any) -> list[list[str]] | None:
    """The modules of each stage from the names of the blocks at which a stage begins; None where those do not fit."""
    from titan.config.model_args import resolve_args

    names = [point.strip() for point in points.split(",")] if isinstance(points, str) else points
    known, _ = known_part(Model, values.get("model", {}), "model.", {})
    try:
        spec, args, _ = resolve_args(Model.model_validate({**known, "hf_assets_path": None, "tokenizer_path": None}))
    except ValueError:  # the section is wrong in other ways, which the check will say
        return None
    if spec is None or args is None or not isinstance(names, list):
        return None
    order = spec.stages
    every = [*order.first, *(f"{order.blocks}.{number}" for number in range(spec.n_layers(args))), *order.last]
    if not all(name in every for name in names):
        return None
    cuts = [0, *sorted(every.index(name) for name in names), len(every)]
    return [every[begin:end] for begin, end in pairwise(cuts)]


def _move(document: tomlkit.TOMLDocument, old: str, new: str, done: Migrated) -> None:
    item = _item(document, old)
    _remove(document, old)
    _put(document, new, item, done, old)


def _replace(document: tomlkit.TOMLDocument, old: str, new: str, value: Any, done: Migrated) -> None:
    before, item = _item(document, old), tomlkit.item(value)
    if before.trivia.comment:
        item.comment(before.trivia.comment.lstrip("# "))
    _remove(document, old)
    _put(document, new, item, done, f"{old} = {value_text(_plain(before))}", f"{new} = {value_text(value)}")


def _item(document: tomlkit.TOMLDocument, key: str) -> Item:
    """The value with its comment; plain access to a boolean has none."""
    section, _, name = key.rpartition(".")
    found: Item = _table(document, section).value.item(name)  # type: ignore[attr-defined]
    return found


def _put(document: tomlkit.TOMLDocument, new: str, item: Any, done: Migrated, was: str, now: str | None = None) -> None:
    section, _, name = new.rpartition(".")
    table = _table(document, section)
    if name in table and new != "model.converters":
        done.left.append(f"{was}: {new} is set already, and stays {value_text(_plain(table[name]))}")
        return
    table[name] = item
    done.changes.append(f"{was} -> {now or new}")


def _table(document: tomlkit.TOMLDocument, section: str) -> MutableMapping[str, Any]:
    """A section, made at the end of the file where there is none."""
    table: MutableMapping[str, Any] = document
    names = section.split(".")
    for place, name in enumerate(names):
        if name not in table:
            table[name] = tomlkit.table(is_super_table=place + 1 < len(names))
        table = table[name]
    return table


def _remove(document: tomlkit.TOMLDocument, key: str) -> None:
    """Takes a key out, and its section where that was all."""
    section, _, name = key.rpartition(".")
    table = _table(document, section)
    table.pop(name, None)
    if not table and "." not in section:
        document.pop(section, None)


def _section(key: str) -> str:
    return key.rpartition(".")[0]


def _at(values: Any, key: str) -> Any:
    for name in key.split("."):
        if not isinstance(values, MutableMapping) or name not in values:
            return None
        values = values[name]
    return values


def _plain(value: Any) -> Any:
    return value.unwrap() if isinstance(value, Item) else value


def _without_extends(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "extends"}
