"""Checks the trainer on one CUDA GPU: its numbers against the CPU's, then tokens/s and MFU, eager and compiled.

Run by gpu_check.sh from the source tree. Part 1 takes five steps of a 6 M parameter model on the CPU and on the GPU,
in float32 (TF32 off) and with bfloat16 compute, on the same rows and weights, and fails where losses or gradient
norms part. Part 2 trains a model that fills the device, 1B at sequence 2048 unless told otherwise. Exit 0: all
passed; 1: numbers differ; 2: cannot run here.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS, TIMED_STEPS, VOCAB = 5, 20, 2048
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
"""Largest relative difference of a loss or a gradient norm: rounding in another order, over five steps."""


def refuse(message: str) -> None:
    print(f"gpu_check: {message}", file=sys.stderr)
    raise SystemExit(2)


def check_environment() -> Any:
    """torch, where it is new enough and sees a CUDA GPU; else exits with what is missing."""
    try:
        import numpy  # noqa: F401
        import pydantic  # noqa: F401
        import tokenizers  # noqa: F401
        import torch
    except ImportError as error:
        refuse(f"this Python ({sys.executable}) lacks {error.name}; install it, or set PYTHON to one that has it.")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 11):
        refuse(f"torch is {torch.__version__}; 2.11 or newer is needed (2.13 is what titan is made for).")
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
        refuse(f"no CUDA GPU: torch {torch.__version__} is {built} and sees no device. Nothing was checked.")
    return torch


def configuration(folder: str, flavor: str, args: dict[str, Any], **training: Any) -> Any:
    from titan.config import Config

    compiled = training.pop("compiled", False)
    return Config.model_validate(
        {
            "job": {"dump_folder": folder},
            "model": {"name": "llama3", "flavor": flavor, "args": args},
            "optimizer": {"lr": 1e-4, "eps": 1e-6},
            "lr_scheduler": {"warmup_steps": 2},
            "training": {"local_batch_size": -1, **training},
            "activation_checkpoint": {"mode": "none"},
            "compile": {"enable": compiled},
            "metrics": {"log_freq": 1},
            "debug": {"seed": 1},
        }
    )


class RandomRows:
    """Rows of random ids below `vocab`, a function of their number."""

    fingerprint, tokenizer_fingerprint, rows_per_epoch = "random", "random", 1 << 20

    def __init__(self, seq_len: int, vocab: int) -> None:
        self.seq_len, self._vocab = seq_len, vocab

    def fetch(self, start: int, count: int) -> tuple[Any, Any]:
        """(inputs, labels), each (count, seq_len) int64."""
        import numpy

        tokens = numpy.random.default_rng(start).integers(0, self._vocab, (count, self.seq_len + 1))
        return numpy.ascontiguousarray(tokens[:, :-1]), numpy.ascontiguousarray(tokens[:, 1:])


def train(config: Any, device: Any, vocab: int) -> list[dict[str, float]]:
    """Runs the real trainer on `device`; the values of each logged step."""
    import json

    import torch

    from titan.config import resolve
    from titan.runtime import StopRequest, World
    from titan.trainer import Trainer

    trainer = Trainer(
        resolve(config, 1, device.type), World(0, 0, 1, device), rows=RandomRows(config.training.seq_len, vocab)
    )
    trainer.train(StopRequest.install())
    lines = (Path(config.job.dump_folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    del trainer
    gc.collect()
    torch.cuda.empty_cache()
    return [json.loads(line) for line in lines]


def numbers(torch: Any) -> bool:
    """Part 1: whether every loss and gradient norm agrees with the CPU's."""
    good = True
    for precision, tolerance in TOLERANCE.items():
        runs = []
        for device in (torch.device("cpu"), torch.device("cuda", 0)):
            with tempfile.TemporaryDirectory() as folder:
                config = configuration(
                    folder,
                    "debugmodel",
                    {"vocab_size": VOCAB},
                    global_batch_size=4,
                    seq_len=256,
                    steps=STEPS,
                    mixed_precision_param=precision,
                )
                runs.append(train(config, device, VOCAB))
        for cpu, gpu in zip(*runs, strict=True):
            worst = max(abs(gpu[key] - cpu[key]) / abs(cpu[key]) for key in ("loss", "grad_norm"))
            good &= worst <= tolerance
            print(
                f"{precision:8} step {int(cpu['step'])}: loss {cpu['loss']:.6f} on the CPU, {gpu['loss']:.6f} on the "
                f"GPU; grad norm {cpu['grad_norm']:.6f}, {gpu['grad_norm']:.6f}; "
                f"apart {worst:.1e}, allowed {tolerance:.0e}" + ("" if worst <= tolerance else "  DIFFERENT")
            )
    return good


def speed(torch: Any, flavor: str, rows: int, seq_len: int) -> None:
    """Part 2: median tokens/s and MFU after the first steps, eager and compiled."""
    from statistics import median

    from titan.models import registry

    vocab = registry.get("llama3").flavors[flavor].vocab_size or VOCAB
    for compiled in (False, True):
        torch.cuda.reset_peak_memory_stats()
        with tempfile.TemporaryDirectory() as folder:
            config = configuration(
                folder,
                flavor,
                {"vocab_size": vocab},
                global_batch_size=rows,
                seq_len=seq_len,
                steps=TIMED_STEPS,
                mixed_precision_param="bfloat16",
                compiled=compiled,
            )
            steps = train(config, torch.device("cuda", 0), vocab)[5:]  # the first ones compile and fill the allocator
        mfu = (
            f"MFU {median(step['mfu'] for step in steps):.1%}" if "mfu" in steps[0] else "MFU unknown (no peak listed)"
        )
        print(
            f"{'compiled' if compiled else 'eager':8} {flavor}, {rows} rows of {seq_len}: "
            f"{median(step['tokens_per_second'] for step in steps):,.0f} tokens/s, {mfu}, "
            f"{steps[-1]['memory_gib']:.1f} GiB at the peak"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavor", default="1B", help="llama3 flavor of the speed part; 1B needs about 40 GiB")
    parser.add_argument("--rows", type=int, default=8, help="rows a step of the speed part")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--skip-speed", action="store_true", help="compare numbers only")
    chosen = parser.parse_args()
    torch = check_environment()
    logging.basicConfig(level=logging.WARNING)
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    torch.backends.cuda.matmul.allow_tf32 = False
    good = numbers(torch)
    if not chosen.skip_speed:
        speed(torch, chosen.flavor, chosen.rows, chosen.seq_len)
    print("numbers agree" if good else "numbers DIFFER between CPU and GPU")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
