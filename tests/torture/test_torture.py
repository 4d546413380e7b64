"""scripts/torture.py in small: a few kills, in both modes. At length: `python scripts/torture.py --kills 100`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "torture.py"


def torture(tmp_path: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words], env=environment, capture_output=True, text=True, timeout=280
    )
    assert "{" in done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout[done.stdout.index("{\n") :])


def test_killed_runs_lose_nothing_and_end_as_the_undisturbed_one(tmp_path: Path) -> None:
    code, report = torture(tmp_path, "--kills", "3", "--seed", "3")
    assert report["failures"] == []
    assert code == 0
    assert report["kills"] == 3
    assert sum(report["attempts"].values()) > report["runs"], "runs went on from what kills had left"
