"""Llama as a plain function of its weights, for the oracle's loop (`titan.parity.oracle`): the tests' own model.

It shares no code with titan/models, so that the tests judge the modules too, where `titan parity` takes them as given.
Weights have the names of the trainer's parameters. Keep it short enough to be seen to be right.
"""

import math

import torch
import torch.nn.functional as F


def llama(w, ids, *, n_layers, n_heads, n_kv_heads, theta=500_000.0, eps=1e-5):
    """Logits (batch, seq, vocab) from weights by name; `ids` (batch, seq)."""
    head_dim = w["layers.0.attention.wq.weight"].shape[0] // n_heads
    angle = torch.arange(ids.shape[1])[:, None] * theta ** -(torch.arange(0, head_dim, 2) / head_dim)[None]
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)  # (seq, head_dim)
    future = torch.triu(torch.full((ids.shape[1], ids.shape[1]), -math.inf), 1)

    def norm(x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * w[name]

    def heads(x, count):
        return x.view(*x.shape[:2], count, head_dim).transpose(1, 2)  # (batch, heads, seq, head_dim)

    def turn(x):
        half = head_dim // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

    h = w["tok_embeddings.weight"][ids]
    for i in range(n_layers):
        at, x = f"layers.{i}.attention", norm(h, f"layers.{i}.attention_norm.weight")
        q = turn(heads(x @ w[f"{at}.wq.weight"].T, n_heads))
        k = turn(heads(x @ w[f"{at}.wk.weight"].T, n_kv_heads)).repeat_interleave(n_heads // n_kv_heads, 1)
        v = heads(x @ w[f"{at}.wv.weight"].T, n_kv_heads).repeat_interleave(n_heads // n_kv_heads, 1)
        mixed = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(head_dim) + future, -1) @ v
        h = h + mixed.transpose(1, 2).flatten(2) @ w[f"{at}.wo.weight"].T
        at, x = f"layers.{i}.feed_forward", norm(h, f"layers.{i}.ffn_norm.weight")
        h = h + (F.silu(x @ w[f"{at}.w1.weight"].T) * (x @ w[f"{at}.w3.weight"].T)) @ w[f"{at}.w2.weight"].T
    head = w.get("output.weight", w["tok_embeddings.weight"])  # no head of its own: tied
    return norm(h, "norm.weight") @ head.T
