"""environment.json in the run folder: what the run ran on, for the day when somebody has to repeat or explain it.

Versions come from the installed packages' metadata, so that nothing is imported for it. Of the environment
variables only those of torch, NCCL and threads are kept: the rest may hold secrets.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from titan.runtime.distributed import World

_PACKAGES = ("torch", "numpy", "pydantic", "datasets", "tokenizers", "safetensors", "tensorboard", "rich", "triton")
_PREFIXES = ("NCCL_", "TORCH", "PYTORCH_", "OMP_", "MKL_", "GLOO_", "CUBLAS_", "CUDA_VISIBLE_DEVICES", "TITAN_")


def describe(world: World) -> dict[str, Any]:
    """Versions, machine, devices, commit and command line; JSON values."""
    import torch

    from titan import __version__
    from titan.runtime.device import device_count, device_name

    return {
        "titan": __version__,
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "torch_build": {"cuda": torch.version.cuda, "hip": torch.version.hip, "git": torch.version.git_version},
        "platform": platform.platform(),
        "host": platform.node(),
        "cpus": os.cpu_count(),
        "world_size": world.world_size,
        "device": {
            "type": world.device.type,
            "name": device_name(world.device),
            "visible": device_count(world.device.type),
        },
        "threads": torch.get_num_threads(),
        "commit": commit(),
        "command": sys.argv,
        "variables": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(_PREFIXES)},
    }


def write_environment(folder: str | os.PathLike[str], world: World) -> None:
    """Writes `describe(world)` to environment.json; to be called by rank 0."""
    target = Path(folder) / "environment.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(describe(world), indent=1) + "\n", encoding="utf-8")


def commit() -> dict[str, Any] | None:
    """The git commit of the source tree that is running and whether it was changed since; None outside of one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "HEAD")
        changed = bool(_git(root, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):  # no git on the machine, or a tree that it refuses to read
        return None
    return {"hash": head, "changed": changed}


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
