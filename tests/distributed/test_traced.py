"""Traced pipeline stages train like the oracle, to the same 1e-5 and from the same bits as those cut by layers."""

from __future__ import annotations

import pytest

from tests.distributed.test_parity import TOLERANCE, check

TRACED = "parallelism.pipeline_parallel_split=traced"


@pytest.mark.parametrize(
    "text",
    [
        "pp=2,schedule=1F1B,training.local_batch_size=4",
        "pp=2,schedule=Interleaved1F1B,microbatch=2,activation_checkpoint.mode=full",
        "pp=2,dp_shard=2,schedule=GPipe",
        "pp=2,dp_shard=2,schedule=ZBVZeroBubble,args.tie_embeddings=true",
        "pp=2,dp_replicate=2,schedule=DualPipeV",
        "pp=2,schedule=1F1B,compile.enable=true,compile.backend=aot_eager",
    ],
)
def test_a_traced_split_trains_like_the_oracle(text: str) -> None:
    found = check(f"{TRACED},{text}")
    assert found["first"] == 0.0, "names and initial weights are those of every other layout"
    assert max(found.values()) < TOLERANCE, found
