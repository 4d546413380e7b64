"""Llama 3 on one device: pre-norm blocks of grouped-query attention and SwiGLU (arXiv:2407.21783).

Nothing here knows of a mesh. The modules keep their names in every layout; a child that another pipeline stage holds
is None or missing, and the forward passes over it. Local widths are read from the tensors, not from the arguments,
so a projection that returns fewer heads needs no change here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from titan.models.layers.attention import Attend
from titan.models.layers.feed_forward import FeedForward
from titan.models.layers.rms_norm import RMSNorm
from titan.models.layers.rope import Rope, Rotation, rotate
from titan.models.llama3.args import LlamaArgs


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, args: LlamaArgs) -> None:
        super().__init__()
        self.head_dim = args.head_size
        self.wq = nn.Linear(args.dim, args.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * self.head_dim, args.dim, bias=False)
        self.attend = Attend()

    def forward(self, x: Tensor, *, rotation: Rotation) -> Tensor:
        q, k, v = (self._heads(w(x)) for w in (self.wq, self.wk, self.wv))  # (batch, heads, seq, head_dim)
        out = self.attend(rotate(q, rotation), rotate(k, rotation), v)
        projected: Tensor = self.wo(out.transpose(1, 2).flatten(2))
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2)


class Block(nn.Module):
    """One layer: attention and feed-forward, each on a normed copy, each added to the residual stream."""

    def __init__(self, args: LlamaArgs) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(args.dim, eps=args.norm_eps)
        self.attention = Attention(args)
        self.ffn_norm = RMSNorm(args.dim, eps=args.norm_eps)
        self.feed_forward = FeedForward(args.dim, args.ffn_dim)

    def forward(self, h: Tensor, rotation: Rotation) -> Tensor:
        h = h + self.attention(self.attention_norm(h), rotation=rotation)
        out: Tensor = h + self.feed_forward(self.ffn_norm(h))
        return out


class Llama(nn.Module):
    """Token ids `(batch, seq)` int64 to logits `(batch, seq, vocab)`; hidden states in or out where a stage lacks an
    end.
    """

    def __init__(self, args: LlamaArgs) -> None:
        super().__init__()
        if args.vocab_size is None:
            raise ValueError("vocab_size is None: resolve it from the tokenizer before building the model")
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.layers = nn.ModuleDict({str(i): Block(args) for i in range(args.n_layers)})
        self.norm = RMSNorm(args.dim, eps=args.norm_eps)
        self.output = nn.Linear(args.dim, args.vocab_size, bias=False)
        if args.tie_embeddings:
            self.output.weight = self.tok_embeddings.weight
        self.rope = Rope(args.head_size, args.rope_theta, args.rope_scaling)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """`positions`: `(seq,)` int64, the global position of each column; 0..seq-1 where not given."""
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
        h = x if self.tok_embeddings is None else self.tok_embeddings(x)
        rotation = self.rope(positions)
        for layer in self.layers.values():
            h = layer(h, rotation)
        h = h if self.norm is None else self.norm(h)
        logits: Tensor = h if self.output is None else self.output(h)
        return logits
