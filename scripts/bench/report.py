"""What the benchmarks write: a section of docs/benchmarks.md each, with the machine named, and the same text on the
console.

A section stands between two comments and is replaced as a whole by the next run of the same benchmark, so that each
can be run alone.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import median

import torch

from titan.runtime import device_name

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"


def machine() -> str:
    """Processor or accelerator, cores, torch, Python, date; what a number means nothing without."""
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    return (
        f"{device_name(device)} ({_model_of_cpu()}), {os.cpu_count()} cores, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {date.today().isoformat()}"
    )


def _model_of_cpu() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    found = {key: re.search(rf"^{key}\s*: (.+)$", text, re.MULTILINE) for key in ("cpu family", "model", "cpu MHz")}
    named = [f"{key} {match[1]}" for key, match in found.items() if match]
    return ", ".join(named) or platform.machine()


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Median and quartiles of repeated measurements."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    return f"{median(ordered):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def write(name: str, title: str, text: str, path: Path = PAGE) -> None:
    """Prints the section `name` and puts it into the page in the place of its last version, or at the end."""
    section = f"<!-- {name} -->\n## {title}\n\n{text.strip()}\n\nMachine: {machine()}.\n<!-- /{name} -->"
    print(section, flush=True)
    page = path.read_text(encoding="utf-8") if path.exists() else "# Benchmarks\n"
    old = re.compile(rf"<!-- {name} -->.*?<!-- /{name} -->", re.DOTALL)
    page = old.sub(lambda _: section, page) if old.search(page) else page.rstrip() + "\n\n" + section + "\n"
    path.write_text(page, encoding="utf-8")
