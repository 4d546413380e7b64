"""The files that we ship, at each number of processes that they name; files as torchtitan 0.2.2 has them, unedited."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from titan.config import ConfigError, Resolved, load, numerics_hash, resolve

pytestmark = pytest.mark.quick
ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "configs").rglob("*.toml"))
STANDARD = sorted(Path(__file__).with_name("standard").glob("*.toml"))
TOKENIZER = f"--model.hf_assets_path={ROOT / 'tests' / 'assets' / 'tokenizer251'}"
"""Stands in for the folders that the files name, which a user downloads."""

WORLD = re.compile(r"^#   (\d+) (?:GPUs|processes?): (.+)$", re.MULTILINE)
WORLDS = [
    (path, int(size), [] if how == "as it stands" else how.split())
    for path in SHIPPED
    for size, how in WORLD.findall(path.read_text())
]


def resolved(path: Path, world: int, arguments: list[str]) -> Resolved:
    """At a path where no tokenizer is, as if on accelerators."""
    tokenizer = [] if path.stem == "debug" and path in SHIPPED else [TOKENIZER]
    return resolve(load(path, [*arguments, *tokenizer]), world, "cuda")


@pytest.mark.parametrize(("path", "world", "arguments"), WORLDS, ids=lambda value: getattr(value, "stem", None))
def test_each_shipped_file_runs_at_each_number_of_processes_that_it_names(
    path: Path, world: int, arguments: list[str]
) -> None:
    found = resolved(path, world, arguments)
    assert found.degrees.world_size == world
    assert found.warnings == (), "no key without effect, nothing cut"
    assert found.batch.global_rows == found.config.training.global_batch_size
    if found.degrees.tp > 1 and path.stem != "debug":
        assert found.degrees.tp <= 8, "tensor parallelism stays within a node"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_file_is_the_same_run_at_all_of_them(path: Path) -> None:
    worlds = [(world, arguments) for other, world, arguments in WORLDS if other == path]
    assert len(worlds) >= 3
    assert path.stem == "debug" or 512 in [world for world, _ in worlds]
    assert len({numerics_hash(load(path, arguments)) for _world, arguments in worlds}) == 1
    assert load(path).debug.seed is not None


def test_what_a_shipped_file_lacks_here_is_its_tokenizer_alone() -> None:
    for path in SHIPPED:
        if path.stem == "debug":
            continue
        world = next(world for other, world, arguments in WORLDS if other == path and not arguments)
        with pytest.raises(ConfigError) as caught:
            resolve(load(path), world, "cuda")
        assert [problem.key for problem in caught.value.problems] == ["model.hf_assets_path"]


NOT_HERE = {
    "405b": ["--model.converters=[]", "--parallelism.enable_async_tensor_parallel=false"],
}
"""What a standard file asks for that is refused, by overrides that leave it off."""


@pytest.mark.parametrize("path", STANDARD, ids=lambda path: path.stem)
def test_a_file_of_torchtitan_checks_without_an_edit(path: Path) -> None:
    off = NOT_HERE.get(path.stem, [])
    if off:
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert {problem.key for problem in caught.value.problems} == {
            argument.removeprefix("--").partition("=")[0] for argument in off
        }
    found = resolved(path, 512 if path.stem == "405b" else 8, off)
    # The batch of their files follows the layout, as it does there.
    assert found.batch.global_rows == found.config.training.local_batch_size * found.degrees.batch
    for warning in found.warnings:
        assert warning.startswith("without effect in this run: "), "what is off there as well"
