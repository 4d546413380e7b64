"""Who holds which tokens and computes which blocks under context parallelism: the causal mask, each pair once.

The two methods that work in blocks take what they compute from the functions tested here.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from titan.parallelisms.context.order import (
    Block,
    LoadBalancer,
    local_positions,
    peer_block,
    prefix_blocks,
    shard_sequence,
    to_natural,
    to_ranks,
)

pytestmark = pytest.mark.quick

BALANCERS: tuple[LoadBalancer, ...] = ("headtail", None)


@pytest.mark.parametrize("balancer", BALANCERS)
@pytest.mark.parametrize("cp", [1, 2, 3, 4, 8])
def test_blocks_cover_the_causal_mask_once(cp: int, balancer: LoadBalancer) -> None:
    headtail, seq = balancer == "headtail", 48
    local = seq // cp
    for rank in range(cp):
        mine = local_positions(seq, cp, rank, balancer)
        gathered = torch.zeros(local, seq, dtype=torch.int)
        for block in prefix_blocks(cp, rank, local, headtail=headtail):
            gathered[block.queries, block.keys] += painted(block, local, seq)
        assert torch.equal(gathered, (mine[:, None] >= torch.arange(seq)).int())
        for peer in range(cp):
            theirs = local_positions(seq, cp, peer, balancer)
            seen = torch.zeros(local, local, dtype=torch.int)
            block = peer_block(rank, peer, local, headtail=headtail)
            if block:
                seen[block.queries, block.keys] += painted(block, local, local)
            assert torch.equal(seen, (mine[:, None] >= theirs).int())


def painted(block: Block, queries: int, keys: int) -> Tensor:
    ones = torch.ones(queries, keys, dtype=torch.int)[block.queries, block.keys]
    return ones.tril() if block.causal else ones


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_headtail_gives_every_rank_the_same_work(cp: int) -> None:
    def pairs(block: Block | None) -> int:
        return int(painted(block, 64, 64 * cp).sum()) if block else 0

    ring = [[pairs(peer_block(rank, peer, 64, headtail=True)) for peer in range(cp)] for rank in range(cp)]
    prefix = [sum(map(pairs, prefix_blocks(cp, rank, 64, headtail=True))) for rank in range(cp)]
    assert {sum(by_peer) for by_peer in ring} == set(prefix) == {64 * cp * (64 * cp + 1) // 2 // cp}
    # And at every step of the ring, so that no rank waits for another.
    for step in range(cp):
        assert len({ring[rank][(rank - step) % cp] for rank in range(cp)}) == 1
    uneven = [sum(map(pairs, prefix_blocks(cp, rank, 64, headtail=False))) for rank in range(cp)]
    assert uneven == sorted(set(uneven))


@pytest.mark.parametrize("balancer", BALANCERS)
def test_shards_and_positions_are_one_order(balancer: LoadBalancer) -> None:
    tokens = torch.arange(2 * 24).view(2, 24)
    shards = [shard_sequence(tokens, 1, 4, rank, balancer) for rank in range(4)]
    for rank, shard in enumerate(shards):
        positions = local_positions(24, 4, rank, balancer)
        assert positions.dtype == torch.int64
        assert torch.equal(shard, tokens[:, positions])
    by_rank = torch.cat(shards, dim=1).T
    assert torch.equal(to_natural(by_rank, 4, headtail=balancer == "headtail"), tokens.T)
    assert torch.equal(to_ranks(tokens.T, 4, headtail=balancer == "headtail"), by_rank)
    assert local_positions(24, 4, 1, "headtail").tolist() == [3, 4, 5, 18, 19, 20]


def test_a_sequence_that_does_not_divide_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"26 tokens must divide by context_parallel_degree x 2 \(headtail\) = 8; 24 is"
    ):
        local_positions(26, 4, 0, "headtail")
    with pytest.raises(ValueError, match="27 tokens must divide by context_parallel_degree = 4; 28 is the nearest"):
        shard_sequence(torch.zeros(1, 27), 1, 4, 0, None)
