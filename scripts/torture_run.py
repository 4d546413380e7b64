"""The tiny run that torture.py disturbs: its configuration, its checkpoints by their checksums, its losses by step."""

from __future__ import annotations

import json
from pathlib import Path

from titan.checkpoint.folders import complete_steps, step_name
from titan.checkpoint.storage import at
from titan.checkpoint.verify import verify

ROOT = Path(__file__).resolve().parent.parent
STEPS, INTERVAL, KEEP = 24, 2, 2
TOML = """
[job]
dump_folder = "{folder}"
[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "{root}/tests/assets/tokenizer251"
[model.args]
dim = 96
n_layers = 4
n_heads = 4
n_kv_heads = 2
hidden_dim = 256
[training]
dataset = "text"
dataset_path = "{folder}/../text.txt"
cache_folder = "{folder}/../cache"
seq_len = 32
global_batch_size = 8
local_batch_size = -1
steps = {steps}
mixed_precision_param = "float32"
[optimizer]
eps = 1e-6
[parallelism]
data_parallel_shard_degree = 1
[activation_checkpoint]
mode = "none"
[checkpoint]
enable = true
interval = {interval}
keep_latest_k = {keep}
last_save_model_only = false
[metrics]
log_freq = 1
[comm]
train_timeout_seconds = 10
[debug]
seed = 7
"""
RELATIVE = 1e-5


class Run:
    """A run in a folder of its own, and the newest checkpoint that was seen complete."""

    def __init__(self, folder: Path, steps: int = STEPS) -> None:
        self.folder, self.checkpoints, self.steps = folder, folder / "checkpoint", steps
        folder.mkdir()
        text = folder.parent / "text.txt"
        if not text.exists():  # one for all runs, in words of the tokenizer
            text.write_text(" ".join(f"w{i * i * i % 248}" for i in range(5000)), encoding="utf-8")
        self.config = folder / "run.toml"
        toml = TOML.format(folder=folder, root=ROOT, steps=steps, interval=INTERVAL, keep=KEEP)
        self.config.write_text(toml, encoding="utf-8")
        self._newest = 0

    def complete(self) -> list[int]:
        return complete_steps(self.checkpoints) if self.checkpoints.is_dir() else []

    def remember(self) -> None:
        """Takes down the newest complete checkpoint: it may not be lost from here on."""
        self._newest = max([self._newest, *self.complete()])

    def damage(self) -> list[str]:
        """What is wrong with the checkpoints: the newest one lost, or one that counts as complete and is not whole."""
        found, complete = [], self.complete()
        if self._newest and (not complete or complete[-1] < self._newest):
            found.append(f"{self.folder}: step {self._newest} was complete and is lost; there are {complete}")
        for step in complete:
            problems = verify(at(self.checkpoints / step_name(step))).problems
            found += [f"{self.checkpoints / step_name(step)}: {problem}" for problem in problems]
        return found


def losses(run: Run) -> dict[int, float]:
    """By step, as metrics.jsonl has them. Raises ValueError for a step that stands there twice, or for none."""
    found: dict[int, float] = {}
    for line in (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["step"] in found:
            raise ValueError(f"{run.folder}: step {entry['step']} is logged twice")
        found[entry["step"]] = entry["loss"]
    return found


def disagreement(wanted: dict[int, float], found: dict[int, float]) -> str:
    """The first difference of two runs, or nothing."""
    if list(wanted) != list(found):
        return f"logged steps {list(found)}, undisturbed {list(wanted)}"
    for step, loss in wanted.items():
        if not abs(found[step] / loss - 1) < RELATIVE:
            return f"step {step}: loss {found[step]}, undisturbed {loss}"
    return ""
