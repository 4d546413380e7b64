"""A key that nothing reads cannot be in the schema: each is read as an attribute of its section somewhere, or stands in
a table of what is refused or not needed. Found in the syntax trees of the package, without running it.

A read counts where the receiver is the section: `config.training.steps`, `training.steps`, `self._section.steps` and
`section.steps` in a file that names the class of the section, or `getattr` of the section over a table of names.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from titan.config import Config
from titan.config.reference import fields, status

pytestmark = pytest.mark.quick
ROOT = Path(__file__).parents[2]
FOLDERS = ("titan", "models", "parallelisms", "checkpoint")
NOT_READERS = ("titan/config/schema", "titan/config/idle", "titan/config/unsupported", "titan/config/differences")


def class_of_section(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield f"{prefix}{name}", inner.__name__
            yield from class_of_section(inner, f"{prefix}{name}.")


SECTIONS = dict(class_of_section(Config))


def sources() -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not path.is_symlink() and not name.startswith(NOT_READERS) and not _through_a_link(path):
                yield name, path.read_text()


def _through_a_link(path: Path) -> bool:
    return any(parent.is_symlink() for parent in path.parents)


def last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def reads(text: str) -> dict[str, set[str]]:
    """Keys that a file reads, by the last name of their section."""
    tree = ast.parse(text)
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    aliases = {"Section": "Metrics"} if "titan.config.schema import Metrics as Section" in text else {}
    classes = {aliases.get(name, name) for name in named}
    found: dict[str, set[str]] = defaultdict(set)
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            receiver = last_name(node.value).removeprefix("_")
            for section, name in SECTIONS.items():
                if receiver == section.rpartition(".")[2] or (receiver == "section" and name in classes):
                    found[section].add(node.attr)
        elif isinstance(node, ast.Call) and last_name(node.func) == "getattr":
            receiver = last_name(node.args[0])
            for section in SECTIONS:
                if receiver == section.rpartition(".")[2]:
                    found[section] |= strings
    return found


def all_reads() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for _name, text in sources():
        for section, keys in reads(text).items():
            found[section] |= keys
    return found


ELSEWHERE = {
    "job.config_file": "titan/commands/arguments.py",
    "job.custom_config_module": "titan/config/custom.py",
    "experimental.custom_args_module": "titan/config/custom.py",
    "model.tokenizer_path": "titan/config/schema_model.py",
}
"""Read before there is a section, by name; the file must have the name as a string."""


def test_each_key_is_read_or_stands_in_a_table() -> None:
    read = all_reads()
    idle = []
    for key, _field in fields():
        section, _, name = key.rpartition(".")
        if key in ELSEWHERE:
            assert f'"{name}"' in (ROOT / ELSEWHERE[key]).read_text() or key in (ROOT / ELSEWHERE[key]).read_text(), key
        elif name not in read[section] and status(key)[0] == "works":
            idle.append(key)
    assert idle == []


def test_the_search_finds_a_key_that_nothing_reads() -> None:
    assert "folder" in reads("def f(checkpoint): return checkpoint.folder")["checkpoint"]
    assert "folder" not in reads("def f(self): self.checkpoint.folder = 1")["checkpoint"], "a write is no read"
    assert "steps" not in reads("def f(validation): return validation.steps")["training"], "another section's key"
    assert (
        "lr" in reads("from titan.config.schema import Optimizer\ndef f(section: Optimizer): section.lr")["optimizer"]
    )
    assert "interval_that_nobody_reads" not in all_reads()["checkpoint"]
