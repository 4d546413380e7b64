"""One rank of ai2-olmo-core in the comparison: `olmo_rank.py PRECISION ROWS SEQ STEPS BLOCK FOLDER`, in its own
environment.

Its own trainer, its Llama-like model at the same width, layers, heads, feed-forward and vocabulary, FSDP2 a block,
fused AdamW, no compile, no checkpoints; no callbacks but those that it adds by itself, and one that takes turns.
Started by `peers.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from olmo_core.config import DType
from olmo_core.data.data_loader import DataLoaderBase
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.nn.transformer import TransformerConfig, TransformerDataParallelWrappingStrategy
from olmo_core.optim import AdamWConfig
from olmo_core.train import Duration, TrainerConfig, prepare_training_environment, teardown_training_environment
from olmo_core.train.callbacks import Callback
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig
from turns import Turns

VOCAB = 2048


class RandomBatches(DataLoaderBase):
    """Batches of random ids, `rows` a rank and step."""

    def __init__(self, rows: int, seq_len: int, steps: int, folder: str) -> None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        super().__init__(
            work_dir=folder,
            global_batch_size=rows * size * seq_len,
            dp_world_size=size,
            dp_rank=rank,
            fs_local_rank=rank,
        )
        self._shape, self._steps = (rows, seq_len), steps

    @property
    def total_batches(self) -> int:
        return self._steps

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass

    def reshuffle(self, epoch: int | None = None, **kwargs: Any) -> None:
        self._epoch = epoch or 1

    def _iter_batches(self) -> Iterable[dict[str, Any]]:
        generator = torch.Generator().manual_seed(self.dp_rank)
        for _ in range(self._steps):
            yield {"input_ids": torch.randint(0, VOCAB, self._shape, generator=generator)}

    def get_mock_batch(self) -> dict[str, Any]:
        return {"input_ids": torch.zeros(self._shape, dtype=torch.int64)}

    def global_num_tokens_in_batch(self, batch: dict[str, Any]) -> int:
        return self._global_batch_size


@dataclass
class TakeTurns(Callback):
    """Waits for the next turn after each block of steps."""

    block: int = 1
    turns: list[Turns] = field(default_factory=list)

    def post_step(self) -> None:
        if not self.turns:
            self.turns.append(Turns(self.block))
        self.turns[0].after_step()


def main() -> None:
    precision, global_rows, seq, n_steps, block, folder = sys.argv[1:]
    seq_len, steps, rows = int(seq), int(n_steps), int(global_rows) // int(os.environ["WORLD_SIZE"])
    prepare_training_environment(seed=1, backend="gloo")
    torch.set_num_threads(1)  # it asks for 8 by itself; two ranks share two cores here
    model = TransformerConfig.llama_like(d_model=256, vocab_size=VOCAB, n_layers=6, n_heads=16).build(
        init_device="meta"
    )
    module = TransformerTrainModuleConfig(
        rank_microbatch_size=rows * seq_len,
        max_sequence_length=seq_len,
        optim=AdamWConfig(lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True),
        max_grad_norm=1.0,
        dp_config=TransformerDataParallelConfig(
            name=DataParallelType.fsdp,
            param_dtype=DType(precision),
            reduce_dtype=DType.float32,
            wrapping_strategy=TransformerDataParallelWrappingStrategy.blocks,
        ),
    ).build(model, device=torch.device("cpu"))
    if int(os.environ["RANK"]) == 0:
        print(f"parameters {model.num_params}", file=sys.stderr)
    trainer = TrainerConfig(
        save_folder=folder,
        save_overwrite=True,
        device="cpu",
        max_duration=Duration.steps(steps),
        metrics_collect_interval=10,
        no_checkpoints=True,
        callbacks={"turns": TakeTurns(block=int(block))},
    ).build(module, RandomBatches(rows, seq_len, steps, folder))
    trainer.fit()
    teardown_training_environment()


if __name__ == "__main__":
    main()
