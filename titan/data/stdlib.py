"""Source `python_stdlib`: the text of the running Python's own standard library, so that a first run needs no download.

About 8 MB and 2.4 M tokens in 390 files. One document a file, in the order of their paths. Left out is what differs
between builds and packagings of one Python version, so that two machines with the same version read the same text:
tests, generated tables (encodings, pydoc_data, _sysconfigdata), and the parts that distributions ship apart (tkinter,
idlelib, lib2to3, distutils, ensurepip). Other Python versions have other text, which a resume notices by the
fingerprint of the data.
"""

from __future__ import annotations

import os
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from titan.data import paths
from titan.data.documents import Tally
from titan.data.errors import DataError
from titan.data.text_files import read_text

_LEFT_OUT = {
    *("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"),
    *("encodings", "pydoc_data"),
    *("tkinter", "idlelib", "turtledemo", "lib2to3", "distutils", "ensurepip", "venv"),
}
_BUILT = ("_sysconfigdata", "sitecustomize", "usercustomize")


class Stdlib:
    """Documents of the standard library under `folder` (default: that of the running Python)."""

    name = "python_stdlib"

    def __init__(self, folder: Path | None = None) -> None:
        """Raises DataError where this Python comes without its source text."""
        self._folder = Path(sysconfig.get_path("stdlib")) if folder is None else folder
        self._files = sorted(self._find())
        if not self._files:
            raise DataError(
                f'training.dataset = "python_stdlib": no Python source in {self._folder}; this Python comes without '
                'it. Use training.dataset = "text" with training.dataset_path.'
            )
        self.total = paths.total_size(self._files)
        self.identity: list[Any] = ["python_stdlib", platform.python_version(), paths.stamp(self._files)]

    def documents(self, tally: Tally) -> Iterator[str]:
        """Text of each file; one that is not UTF-8 is skipped and counted."""
        for path in self._files:
            yield from read_text(path, tally)

    def _find(self) -> Iterator[Path]:
        for folder, inner, names in os.walk(self._folder):
            inner[:] = [name for name in inner if name not in _LEFT_OUT]  # not walked: site-packages can be large
            for name in names:
                path = Path(folder, name)
                if name.endswith(".py") and not name.startswith(_BUILT) and path.is_file() and path.stat().st_size:
                    yield path
