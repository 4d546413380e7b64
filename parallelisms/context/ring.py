"""The ring (rotate method `alltoall`): K and V go round the group, one peer's at a time (arXiv:2310.01889).

At step s a rank works on the K/V of the peer s places before it, while they already travel on to the next rank. It
never holds more than two peers' K/V, the one in use and the one arriving, whatever cp is; forward it sends (cp-1) times
its local K/V, which a test counts. Backward sends K/V round once more, and behind them float32 sums of dK and dV, to
which each rank adds its share: these leave their owner's neighbour at step 1 and come home after the last step, again
cp-1 sends.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from titan.parallelisms.context.order import peer_block
from titan.parallelisms.context.sums import PartialAttention, PartialGradients, finished, wide

_KV, _GRADIENTS = 0, 1  # tags: on gloo the two kinds of message between the same ranks must not be mistaken


class _Transfer:
    """One step round the ring, begun when made: `sent` goes to the next rank, the previous rank's arrives."""

    def __init__(self, sent: Tensor, group: dist.ProcessGroup, tag: int) -> None:
        rank, cp = group.rank(), group.size()
        self._sent = sent  # must live, unchanged, until it has left
        self._arriving = torch.empty_like(sent)
        # Peers by their rank in the group: it may be any subset of the world.
        send = dist.P2POp(dist.isend, sent, group=group, group_peer=(rank + 1) % cp, tag=tag)
        receive = dist.P2POp(dist.irecv, self._arriving, group=group, group_peer=(rank - 1) % cp, tag=tag)
        self._works = dist.batch_isend_irecv([send, receive])

    def wait(self) -> Tensor:
        for work in self._works:
            work.wait()
        return self._arriving


def forward(q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup, headtail: bool) -> tuple[Tensor, Tensor]:
    """Local q, k, v `(batch, heads, local, head_dim)` to local out and logsumexp."""
    rank, cp = group.rank(), group.size()
    attention = PartialAttention(q)
    held = torch.stack((k, v)).contiguous()  # (2, batch, kv_heads, local, head_dim)
    for step in range(cp):
        coming = _Transfer(held, group, _KV) if step < cp - 1 else None
        block = peer_block(rank, (rank - step) % cp, q.shape[2], headtail=headtail)
        if block:
            attention.add(block, held[0], held[1])
        if coming:
            held = coming.wait()
    return attention.result()


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    group: dist.ProcessGroup,
    headtail: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Local dq, dk, dv; dk and dv summed over the queries of all ranks."""
    rank, cp = group.rank(), group.size()
    gradients = PartialGradients(grad_out, q, out, logsumexp)
    held = torch.stack((k, v)).contiguous()  # (2, batch, kv_heads, local, head_dim)
    own = torch.zeros_like(held, dtype=wide(k.dtype))  # by the local queries, then by all
    travelling: _Transfer | None = None
    for step in range(cp):
        coming = _Transfer(held, group, _KV) if step < cp - 1 else None
        share = own if step == 0 else torch.zeros_like(own)
        block = peer_block(rank, (rank - step) % cp, q.shape[2], headtail=headtail)
        if block:
            gradients.add(block, held[0], held[1], share[0], share[1])
        if travelling:  # what the ranks between that peer and this one have added
            share += travelling.wait()
        if step > 0:
            travelling = _Transfer(share, group, _GRADIENTS)
        if coming:
            held = coming.wait()
    if travelling:
        own += travelling.wait()
    return gradients.result(), finished(own[0], k.dtype), finished(own[1], v.dtype)
