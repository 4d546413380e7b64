"""The same configuration on the same machine gives the same bits, on one rank and on two, with and without
`debug.deterministic`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.distributed import tiny
from tests.distributed.ranks import run_ranks
from tests.distributed.test_parity import layout
from titan.runtime import set_determinism


def _train(sections: dict[str, dict[str, Any]]) -> tuple[list[float], dict[str, bytes]]:
    config = tiny.config(sections)
    set_determinism(config.debug)
    try:
        trainer = tiny.make_trainer(config)
        records = tiny.train_steps(trainer, 3)
        trainer.loader.close()
        trainer.checkpoints.close()
        assert torch.are_deterministic_algorithms_enabled() == config.debug.deterministic
    finally:
        torch.use_deterministic_algorithms(False)
    last = {f"{fqn} {box}": values.tobytes() for fqn, _, box, values in tiny.local_pieces(trainer, grads=False)}
    return [record["loss"] for record in records] + [record["grad_norm"] for record in records], last


@pytest.mark.parametrize("text", ["", "dp_shard=2,debug.deterministic=true", "pp=2"])
def test_two_runs_are_bitwise_the_same(text: str) -> None:
    size, sections = layout(text)
    sections["debug"] = {"seed": 7, **sections.get("debug", {})}
    assert run_ranks(_train, size, sections) == run_ranks(_train, size, sections)
