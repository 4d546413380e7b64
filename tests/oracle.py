"""The oracle: Llama on one process as a plain loop, sharing no code with what it judges.

Its own model, its own loss, its own clipping, torch's optimizer. Parameters have the names of the trainer's, so that
weights and gradients compare by name. Everything is tested against this: keep it short enough to be seen to be right.
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


def train(weights, steps, *, lr, max_norm, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-8, rows_at_once=None, **shape):
    """Trains a copy of `weights` on `steps`, a list of (inputs, labels); returns a record a step and the final weights.

    Each record holds loss, grad_norm (before clipping) and grads by name. `lr` is a list, one a step. `rows_at_once`
    cuts the
    batch into pieces, which changes nothing but rounding: the noise floor.
    """
    w = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    groups = [
        {"params": [p for p in w.values() if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in w.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=betas, eps=eps)
    records = []
    for (inputs, labels), rate in zip(steps, lr, strict=True):
        valid, loss = (labels != -100).sum().clamp(min=1), 0.0
        for rows in torch.arange(len(inputs)).split(rows_at_once or len(inputs)):
            logits = llama(w, inputs[rows], **shape)
            part = F.cross_entropy(logits.flatten(0, 1), labels[rows].flatten(), reduction="sum") / valid
            part.backward()
            loss += part.item()
        grads = {name: p.grad.clone() for name, p in w.items()}
        norm = torch.stack([g.norm() for g in grads.values()]).norm().item()
        for p in w.values():
            p.grad.mul_(min(1.0, max_norm / (norm + 1e-6)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        records.append({"loss": loss, "grad_norm": norm, "grads": grads})
    return records, {name: p.detach() for name, p in w.items()}
