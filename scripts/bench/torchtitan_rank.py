"""One rank of torchtitan 0.2.2 in the comparison: `torchtitan_rank.py PRECISION ROWS SEQ STEPS BLOCK FOLDER`, in its
own environment.

Its own `Trainer.train`, its llama3 debugmodel (the shape of ours), FSDP2 a block, fused AdamW, no compile, no
checkpoints, no activation checkpointing. It has no CPU device: three things are put in its place from outside, none in
the path of a step. The device it asks torch for is the CPU, rows are random ids in memory instead of a dataset and a
tokenizer that its wheel lacks, and FSDP2 is told to reduce by plain sums, as gloo refuses the scaled ones. It imports
triton. Started by `peers.py`.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import torch._utils
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from turns import Turns

VOCAB = 2048


class CpuModule:
    """`torch.cpu` with the memory statistics that torchtitan's metrics ask for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def set_device(self, device: Any) -> None:
        pass

    def current_device(self) -> int:
        return 0

    def get_device_name(self, device: Any) -> str:
        return "cpu"

    def get_device_properties(self, device: Any) -> Any:
        return SimpleNamespace(name="cpu", total_memory=1 << 34)

    def memory_stats(self, device: Any) -> dict[str, int]:
        names = ("active_bytes.all.peak", "reserved_bytes.all.peak", "num_alloc_retries", "num_ooms")
        return dict.fromkeys(names, 0)

    def reset_peak_memory_stats(self) -> None:
        pass

    def empty_cache(self) -> None:
        pass


torch._utils._get_available_device_type = lambda: "cpu"  # before torchtitan looks, at import
torch._utils._get_device_module = lambda device_type: CpuModule()

from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402
from torchtitan.config import ConfigManager  # noqa: E402
from torchtitan.protocols.train_spec import get_train_spec, register_train_spec  # noqa: E402
from torchtitan.train import Trainer  # noqa: E402


class RandomBatches(BaseDataLoader):
    """Batches of random ids, `rows` a rank and step."""

    def __init__(self, rows: int, seq_len: int, rank: int) -> None:
        self._shape, self._rank = (rows, seq_len + 1), rank

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        generator = torch.Generator().manual_seed(self._rank)
        while True:
            tokens = torch.randint(0, VOCAB, self._shape, generator=generator)
            yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class TurnTaker(Trainer):
    """Waits for the next turn after each block of steps."""

    block = 1
    turns: ClassVar[list[Turns]] = []

    def train_step(self, data_iterator: Any) -> None:
        super().train_step(data_iterator)
        if not self.turns:
            self.turns.append(Turns(self.block))
        self.turns[0].after_step()


def main() -> None:
    precision, global_rows, seq_len, steps, block, folder = sys.argv[1:]
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    rows = int(global_rows) // ranks
    torch.set_num_threads(1)
    spec = dataclasses.replace(
        get_train_spec("llama3"),
        build_dataloader_fn=lambda **_: RandomBatches(rows, int(seq_len), rank),
        build_tokenizer_fn=None,
    )
    register_train_spec("bench", spec)
    settings = {
        "job.dump_folder": folder,
        "model.name": "bench",
        "model.flavor": "debugmodel",
        "optimizer.lr": "1e-4",
        "training.local_batch_size": rows,
        "training.seq_len": seq_len,
        "training.steps": steps,
        "training.mixed_precision_param": precision,
        "parallelism.data_parallel_shard_degree": ranks,
        "activation_checkpoint.mode": "none",
        "comm.trace_buf_size": 0,
    }
    TurnTaker.block = int(block)
    trainer = TurnTaker(ConfigManager().parse_args([f"--{name}={value}" for name, value in settings.items()]))
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    if rank == 0:
        count = sum(parameter.numel() for parameter in trainer.model_parts[0].parameters())
        print(f"parameters {count}", file=sys.stderr)
    trainer.train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
