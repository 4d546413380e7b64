"""scripts/bench/one_process.py in small: the benchmark still drives the trainer, and its page still takes a section."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench" / "one_process.py"


def test_the_benchmark_runs_and_replaces_its_section(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text("# Benchmarks\n\n<!-- one-process -->\nold\n<!-- /one-process -->\n\nkept\n", encoding="utf-8")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(SCRIPT), "--small", "--page", str(page)], check=True, env=environment)
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert text.endswith("kept\n")
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith(("| wall", "| processor"))]
    assert [row[0].strip() for row in rows] == ["wall", "processor"]
    for row in rows:
        speeds = [float(re.split(r"[ (]", cell.strip())[0].replace(",", "")) for cell in row[1:6]]
        assert all(0.0 < value < float("inf") for value in speeds)
