"""Exits with 0 if this Python has titan from this checkout and every package that pyproject.toml asks for, else with 1.

`python scripts/installed.py [EXTRA]`. Reads names and versions from the packages' metadata and imports none of them. An
environment that `make_venv.py` has begun and not finished does not count.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  the Python on the PATH may be any
    sys.exit(1)

import re
import tomllib
from importlib import metadata, util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNFINISHED = Path(sys.prefix) / "titan-setup-unfinished"


def wanted(extra: str | None) -> list[str]:
    """The requirements of the project, with those of an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *(project["optional-dependencies"][extra] if extra else [])]


def is_met(requirement: str) -> bool:
    """Whether a requirement of the form `name>=1.2,<3` or `name[extra]>=1.2` is installed; these two comparisons are
    all that we use."""
    name, *rest = re.split(r"(?=[<>])", requirement, maxsplit=1)
    try:
        version = numbers(metadata.version(name.partition("[")[0].strip()))
    except metadata.PackageNotFoundError:
        return False
    bounds = rest[0].split(",") if rest else []
    return all(version >= numbers(one) if ">=" in one else version < numbers(one) for one in bounds)


def numbers(version: str) -> tuple[int, ...]:
    """The release that a version or a bound names: 1.10.2+cpu and >=1.10.2 are (1, 10, 2)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def main() -> int:
    if UNFINISHED.exists():
        return 1
    found = util.find_spec("titan")
    here = found is not None and found.origin is not None and Path(found.origin).resolve().is_relative_to(ROOT)
    return 0 if here and all(is_met(one) for one in wanted(sys.argv[1] if sys.argv[1:] else None)) else 1


if __name__ == "__main__":
    sys.exit(main())
