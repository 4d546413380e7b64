"""A module of the user's extends the schema: its keys are as strict, as documented and as traceable as ours."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from titan.config import Config, ConfigError, dump, load, numerics, resolve

pytestmark = pytest.mark.quick

MODULE = '''
import titan.config
from titan.config.schema import Training
from titan.config.section import PositiveInt, Section


class MyTraining(Training):
    """Ours and one more."""

    extra_rows: PositiveInt = 3
    """Rows that nobody else has."""


class Poetry(Section):
    """A section of its own."""

    verse: str = "free"
    """Kind of verse."""


class Config(titan.config.Config):
    training: MyTraining = MyTraining()
    poetry: Poetry = Poetry()
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """In the working directory, which needs no PYTHONPATH."""
    (tmp_path / "my_config.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "my_config"
    sys.modules.pop("my_config", None)


def written(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("key", ["job.custom_config_module", "experimental.custom_args_module"])
def test_a_module_adds_sections_and_keys(tmp_path: Path, module: str, key: str) -> None:
    section, name = key.split(".")
    text = f'[{section}]\n{name} = "{module}"\n[poetry]\nverse = "blank"\n[training]\nsteps = 4\nextra_rows = 5\n'
    config = load(written(tmp_path, text), ["--poetry.verse=12"])
    assert (config.poetry.verse, config.training.extra_rows, config.training.steps) == ("12", 5, 4)  # type: ignore[attr-defined]
    assert config.origins["training.extra_rows"].endswith("run.toml:7")
    again = load(written(tmp_path, dump(config)))
    assert again == config
    assert isinstance(again, Config)
    assert numerics(config)["training.extra_rows"] == 5
    assert resolve(config, 1, "cpu").batch.global_rows == 8


def test_its_keys_are_as_strict_as_ours(tmp_path: Path, module: str) -> None:
    text = f'[job]\ncustom_config_module = "{module}"\n[poetry]\nvers = "x"\n[training]\nextra_rows = 0\nstep = 1\n'
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text))
    said = str(caught.value)
    assert len(caught.value.problems) == 3
    assert "run.toml:4: poetry.vers: unknown key. Did you mean poetry.verse?" in said
    assert "run.toml:6: training.extra_rows = 0: must be an integer >= 1." in said


def test_without_the_module_its_keys_are_unknown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown section"):
        load(written(tmp_path, '[poetry]\nverse = "x"\n'))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "cannot be imported: No module named 'my_broken'"),
        ("x = 1 / 0\n", "ZeroDivisionError"),
        ("class Config: pass\n", "no class Config that extends titan.config.Config"),
        ("", "no class Config that extends titan.config.Config"),
    ],
)
def test_a_module_that_does_not_serve_is_one_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, said: str
) -> None:
    if source is not None:
        (tmp_path / "my_broken.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, '[job]\ncustom_config_module = "my_broken"\n'))
    sys.modules.pop("my_broken", None)
    (problem,) = caught.value.problems
    assert said in problem.text
    assert (problem.key, problem.value) == ("job.custom_config_module", '"my_broken"')
    assert str(problem.origin).endswith("run.toml:2")


def test_two_names_of_the_module_that_disagree_are_refused(tmp_path: Path, module: str) -> None:
    text = f'[job]\ncustom_config_module = "{module}"\n[experimental]\ncustom_args_module = "other"\n'
    with pytest.raises(ConfigError, match="delete this one"):
        load(written(tmp_path, text))
