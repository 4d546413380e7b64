"""The reference page and the JSON Schema say what the code does, and the committed ones are current."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from titan.config import Config, load
from titan.config.differences import BEHAVIOURS, DEFAULTS
from titan.config.reference import fields, json_schema, page, status
from titan.config.unsupported import INSTEAD, NOT_NEEDED, PARTS, WORKS_ELSE

pytestmark = pytest.mark.quick
ROOT = Path(__file__).parents[2]
STANDARD = Path(__file__).with_name("standard_keys.toml")
KEYS = {key for key, _ in fields()}


def test_the_committed_page_and_schema_are_current() -> None:
    again = "run: titan config docs -o docs/config.md; titan config schema -o configs/schema.json"
    assert (ROOT / "docs" / "config.md").read_text() == page(), again
    assert json.loads((ROOT / "configs" / "schema.json").read_text()) == json_schema(), again


def test_the_page_has_every_key_with_its_alternative_where_it_is_refused() -> None:
    text = page()
    for key in KEYS:
        section, _, name = key.rpartition(".")
        assert f"## [{section}]\n" in text
        assert f"| `{name}` |" in text
        if status(key)[0] == "refused":
            assert INSTEAD[key][1:] in text, key


def test_the_tables_name_keys_that_exist() -> None:
    assert {*INSTEAD, *NOT_NEEDED, *WORKS_ELSE, *DEFAULTS, *BEHAVIOURS, *PARTS.values()} <= KEYS
    assert all(any(key.startswith(start) for key in KEYS) for start in PARTS)
    assert set(PARTS.values()) <= set(INSTEAD), "a part belongs to a switch that is refused"


def test_every_standard_default_that_differs_is_in_the_table_of_differences() -> None:
    theirs, ours = load(STANDARD), Config()
    standard = {key for key, field in fields() if "Our own" not in (field.description or "")}
    assert len(standard) == 149
    differ = {key for key in standard if at(theirs, key) != at(ours, key)}
    assert differ == set(DEFAULTS)


def at(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = getattr(config, name)
    return config


VALIDATOR = Draft202012Validator(json_schema())


def test_the_schema_is_of_the_draft_that_it_names_and_every_key_is_described() -> None:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"].endswith("2020-12/schema")
    for name, definition in schema["$defs"].items():
        if "properties" not in definition or name in ("RoPEScaling",):
            continue
        for key, described in definition["properties"].items():
            assert described.get("description") or "$ref" in described or name == "Model", f"{name}.{key}"


@pytest.mark.parametrize("path", [*sorted((ROOT / "configs").rglob("*.toml")), STANDARD], ids=lambda path: path.stem)
def test_the_schema_accepts_the_files_that_we_accept(path: Path) -> None:
    values = tomllib.loads(path.read_text())
    assert [error.message for error in VALIDATOR.iter_errors(values)] == []
    if path is not STANDARD:
        directive = path.read_text().splitlines()[0]
        assert directive.startswith("#:schema ")
        assert (path.parent / directive.removeprefix("#:schema ")).resolve() == ROOT / "configs" / "schema.json"


@pytest.mark.parametrize(
    "text",
    [
        'extends = ["a.toml", "b.toml"]',
        "[training]\nmax_norm = inf",
        '[job]\ntime_limit = "2h30m"',
        '[model.args]\ndim = 64\nn_kv_heads = "none"\nmine = 3',
        '[parallelism]\ncontext_parallel_load_balancer = "none"\nfsdp_reshard_after_forward = 4',
    ],
)
def test_the_schema_takes_what_is_particular(text: str) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(tomllib.loads(text))] == []


@pytest.mark.parametrize(
    "text",
    [
        "[trainin]",
        "[training]\nstep = 1",
        "[training]\nsteps = 0",
        '[training]\nsteps = "1"',
        '[parallelism]\npipeline_parallel_schedule = "1f1b"',
        '[model.args]\ndim = "64"',
        "[optimizer]\nlr = 0.0",
        '[activation_checkpoint]\nselective_ac_option = "x"',
    ],
)
def test_the_schema_refuses_what_we_refuse(text: str) -> None:
    assert list(VALIDATOR.iter_errors(tomllib.loads(text)))
