"""How train.sh finds a Python: what counts as complete, and what a user without one reads."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.launch.conftest import ROOT

pytestmark = pytest.mark.quick
INSTALLED = ROOT / "scripts" / "installed.py"


def _code(*command: object, **variables: str) -> int:
    return subprocess.run([str(part) for part in command], env={**os.environ, **variables}, check=False).returncode


def test_this_environment_is_complete():
    assert _code(sys.executable, INSTALLED, "dev") == 0


def test_environment_without_the_packages_is_not(tmp_path):
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    assert _code(python, INSTALLED, PYTHONPATH=str(ROOT)) == 1


def test_half_made_environment_is_not(tmp_path):
    """One that a killed start left: it has everything but the removal of the mark."""
    venv.create(tmp_path / "env", with_pip=False)
    python, packages = (
        tmp_path / "env" / "bin" / "python",
        next(Path(p) for p in sys.path if p.endswith("site-packages")),
    )
    variables = {"PYTHONPATH": f"{ROOT}{os.pathsep}{packages}"}
    assert _code(python, INSTALLED, **variables) == 0
    (tmp_path / "env" / "titan-setup-unfinished").touch()
    assert _code(python, INSTALLED, **variables) == 1


@pytest.mark.parametrize(
    ("requirement", "met"),
    [
        ("torch>=2.13,<2.14", True),
        ("torch>=99", False),
        ("torch<2", False),
        ("no-such-package-here", False),
        ("torch", True),
    ],
)
def test_versions_are_compared_with_what_the_project_asks(requirement, met):
    code = "import sys, installed; sys.exit(installed.is_met(sys.argv[1]))"
    assert _code(sys.executable, "-c", code, requirement, PYTHONPATH=str(INSTALLED.parent)) == met


def test_train_sh_from_another_folder_takes_paths_of_that_folder(tmp_path):
    (tmp_path / "mine.toml").write_text("[training]\nnonsense = 1\n")
    variables = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        [str(ROOT / "train.sh"), "mine.toml"], cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("titan: mine.toml:2: training.nonsense")


def test_train_sh_without_arguments_shows_the_usage():
    done = subprocess.run(
        [str(ROOT / "train.sh")], env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
