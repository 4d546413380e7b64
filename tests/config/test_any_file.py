"""Whatever a file says, the answer is a configuration or a ConfigError: never another exception, never a false refusal.

Valid files are made from the schema's own types, then changed at random: other values, other names, other text.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from titan.config import Config, ConfigError, Resolved, dump, load, resolve
from titan.config.reference import fields
from titan.config.section import Rule
from titan.config.toml_text import key_text, value_text
from titan.config.unsupported import INSTEAD
from titan.config.wording import leaves

pytestmark = pytest.mark.quick
RUNS = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
SPECIAL = {
    "parallelism.data_parallel_shard_degree": st.sampled_from([-1, 1, 2, 8]),
    "training.local_batch_size": st.sampled_from([-1, 1, 7]),
    "training.global_batch_size": st.sampled_from([-1, 1, 64]),
    "validation.steps": st.sampled_from([-1, 3]),
    "activation_checkpoint.selective_ac_option": st.sampled_from(["op", "1", "12"]),
    "job.time_limit": st.sampled_from([30, "90s", "2h30m"]),
    "training.max_norm": st.sampled_from([0.5, 1, math.inf]),
    "parallelism.context_parallel_load_balancer": st.sampled_from(["headtail", "none"]),
}
NOT_HERE = {*INSTEAD, "job.custom_config_module", "experimental.custom_args_module", "model.tokenizer_path"}
FIELDS = {key: field for key, field in fields() if key not in NOT_HERE}


def valid(annotation: Any, metadata: list[Any]) -> st.SearchStrategy[Any]:
    """Values of a field's type within its bounds."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return valid(arguments[0], [*metadata, *arguments[1:]])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(valid(arguments[0], []), max_size=3)
    if origin is dict:
        return st.just({})
    if annotation is bool:
        return st.booleans()
    if annotation is str:
        return WORDS
    bounds = flat(metadata)
    if annotation is int:
        return st.integers(bounds.get("ge", -9), min(bounds.get("lt", 2**40) - 1, 2**31))
    low, high = bounds.get("ge", bounds.get("gt", -1e6)), bounds.get("le", bounds.get("lt", 1e6))
    inside = st.floats(low, high, exclude_min="gt" in bounds, exclude_max="lt" in bounds, allow_nan=False)
    return inside | st.just(1) if low < 1 < high else inside  # an integer may stand for a float


def flat(metadata: list[Any]) -> dict[str, Any]:
    kinds = {annotated_types.Ge: "ge", annotated_types.Gt: "gt", annotated_types.Le: "le", annotated_types.Lt: "lt"}
    items = [inner for item in metadata for inner in getattr(item, "metadata", (item,))]
    return {
        name: getattr(item, name)
        for item in items
        if not isinstance(item, Rule)
        for kind, name in kinds.items()
        if isinstance(item, kind)
    }


def of_field(key: str) -> st.SearchStrategy[Any]:
    field = FIELDS[key]
    if key in SPECIAL:
        return SPECIAL[key]
    return st.one_of([valid(leaf, list(field.metadata)) for leaf in alternatives(field.annotation)])


def alternatives(annotation: Any) -> list[Any]:
    """Members of a union with their bounds; None, for which TOML has no word, left out."""
    if get_origin(annotation) is Annotated or not leaves(annotation) or len(leaves(annotation)) == 1:
        inner = [member for member in get_args(annotation) if member is not type(None)]
        union = type(None) in get_args(annotation)
        return inner if union else [annotation]
    return [member for member in get_args(annotation) if member is not type(None)]


FILES = st.lists(st.sampled_from(sorted(FIELDS)), unique=True, max_size=12).flatmap(
    lambda keys: st.fixed_dictionaries({key: of_field(key) for key in keys})
)

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | WORDS
    | st.sampled_from(["", "true", "1e-4", "none", "op", "1f1b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=4,
).filter(lambda value: "None" not in repr(value))


def text_of(values: dict[str, Any]) -> str:
    """A file of dotted keys to values."""
    tables: dict[str, list[str]] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        tables.setdefault(section, []).append(f"{key_text(name)} = {value_text(value)}")
    lines = tables.pop("", [])
    for section, own in tables.items():
        lines += [f"[{'.'.join(map(key_text, section.split('.')))}]", *own]
    return "\n".join(lines) + "\n"


def answer(folder: Path, text: str, arguments: list[str]) -> ConfigError | Resolved:
    """What becomes of a file: only these two kinds of end are allowed."""
    path = folder / "any.toml"
    path.write_text(text, encoding="utf-8", newline="")
    found: ConfigError | Resolved
    try:
        found = resolve(load(path, arguments), 1, "cpu")
    except ConfigError as error:
        found = error
    assert isinstance(found, Resolved) or all(problem.text for problem in found.problems)
    return found


@RUNS
@given(values=FILES)
def test_a_valid_file_is_never_refused_and_its_dump_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("any", numbered=True) / "run.toml"
    path.write_text(text_of(values), encoding="utf-8")
    config = load(path)
    assert {key for key in config.origins if key in FIELDS} == set(values)
    path.write_text(dump(config), encoding="utf-8")
    assert load(path) == config


@RUNS
@given(values=FILES, key=st.sampled_from(sorted(key for key, _ in fields())), value=ANYTHING)
def test_any_value_at_any_key_is_taken_or_refused(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any], key: str, value: Any
) -> None:
    answer(tmp_path_factory.mktemp("any", numbered=True), text_of({**values, key: value}), [])


@RUNS
@given(
    values=FILES, name=WORDS, value=ANYTHING, place=st.sampled_from(["", "training", "model.args", "zzz", "training.x"])
)
def test_any_name_anywhere_is_taken_or_refused(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any], name: str, value: Any, place: str
) -> None:
    folder = tmp_path_factory.mktemp("any", numbered=True)
    name = name.replace(".", "_")
    found = answer(folder, text_of({**values, f"{place}.{name}" if place else name: value}), [])
    if place != "model.args" and name not in Config.model_fields and name != "extends":
        assert isinstance(found, ConfigError)


@RUNS
@given(values=FILES, argument=WORDS | WORDS.map("--{}".format), key=st.sampled_from(sorted(FIELDS)), text=WORDS)
def test_any_command_line_is_taken_or_refused(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any], argument: str, key: str, text: str
) -> None:
    answer(
        tmp_path_factory.mktemp("any", numbered=True), text_of(values), [argument, f"--{key}={text}", f"--{key}", text]
    )


@RUNS
@given(values=FILES, at=st.integers(0, 400), cut=st.integers(0, 9), put=st.text(max_size=6))
def test_any_text_is_taken_or_refused(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any], at: int, cut: int, put: str
) -> None:
    text = text_of({"training.steps": 3, "training.seq_len": 64, **values})
    put = put.encode("utf-8", "ignore").decode("utf-8")
    answer(tmp_path_factory.mktemp("any", numbered=True), text[:at] + put + text[at + cut :], [])
