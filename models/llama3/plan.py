"""What generic code needs to know about Llama 3, as data: sharding plan, stages, initial weights, FLOPs, what cannot
be cut.

No torch and no parallelism here, only names and numbers; `parallelisms/` turns them into wrappers.
"""

from __future__ import annotations

import math

from titan.models.llama3.args import LlamaArgs
from titan.models.registry import InitRule, Stages, TPStyle

TP_PLAN: dict[str, TPStyle] = {
    "tok_embeddings": "vocab_embedding",
    "layers.*.attention_norm": "sequence",
    "layers.*.attention": "gather_sequence",
    "layers.*.attention.wq": "colwise",
    "layers.*.attention.wk": "kv_heads",
    "layers.*.attention.wv": "kv_heads",
    "layers.*.attention.wo": "rowwise",
    "layers.*.ffn_norm": "sequence",
    "layers.*.feed_forward": "gather_sequence",
    "layers.*.feed_forward.w1": "colwise",
    "layers.*.feed_forward.w3": "colwise",
    "layers.*.feed_forward.w2": "rowwise",
    "norm": "sequence",
    "output": "vocab_head",
}

STAGES = Stages(first=("tok_embeddings",), blocks="layers", last=("norm", "output"))


def tied(args: LlamaArgs) -> tuple[tuple[str, str], ...]:
    """The head is the embedding's weight when tied: one canonical parameter, under the embedding's name."""
    return (("tok_embeddings.weight", "output.weight"),) if args.tie_embeddings else ()


def init_rule(args: LlamaArgs, fqn: str) -> InitRule:
    """Norms one; every matrix a truncated normal of `init_std`.

    The projections that write to the residual stream (`wo`, `w2`) have it divided by sqrt(2 x n_layers), so that the
    variance of the stream does not grow with depth (Radford et al., 2019, GPT-2).
    """
    if "norm" in fqn.rsplit(".", 2)[-2]:
        return InitRule("ones")
    residual = fqn.endswith(("attention.wo.weight", "feed_forward.w2.weight"))
    return InitRule("normal", args.init_std / math.sqrt(2 * args.n_layers) if residual else args.init_std)


def parameter_count(args: LlamaArgs) -> int:
    """Parameters of the whole model, a tied head counted once."""
    vocab = args.vocab_size or 0
    attention = args.dim * args.head_size * (2 * args.n_heads + 2 * args.kv_heads)
    block = attention + 3 * args.dim * args.ffn_dim + 2 * args.dim
    return args.n_layers * block + vocab * args.dim * (1 if args.tie_embeddings else 2) + args.dim


def flops_per_token(args: LlamaArgs, seq_len: int) -> float:
    """FLOPs of forward and backward of one token: 6 a matrix parameter, and 12 x heads x head_dim x seq_len a layer
    of attention.

    The convention of PaLM (Chowdhery et al., 2022, appendix B): causal attention counted in full, recomputation and
    the embedding's look-up not counted, the head's matrix counted whether tied or not.
    """
    vocab = args.vocab_size or 0
    matrices = parameter_count(args) - (0 if args.tie_embeddings else vocab * args.dim)
    return 6.0 * matrices + 12.0 * args.n_layers * args.n_heads * args.head_size * seq_len


def check(args: LlamaArgs, *, tp: int = 1, cp: int = 1, seq_len: int = 0) -> list[str]:
    """What is wrong with these arguments or cannot be cut by these degrees; each message names the numbers and a way
    out.
    """
    found = []
    if args.head_dim is None and args.dim % args.n_heads:
        found.append(
            f"dim = {args.dim} does not divide by n_heads = {args.n_heads}: set head_dim, or a dim that is a multiple "
            "of n_heads."
        )
    elif args.head_size % 2:
        found.append(
            f"the head dimension is {args.head_size}, odd: rotary embedding rotates pairs, choose an even one."
        )
    if args.kv_heads < 1 or args.n_heads % args.kv_heads:
        found.append(
            f"n_heads = {args.n_heads} does not divide by n_kv_heads = {args.kv_heads}: each KV head serves "
            "equally many "
            "query heads."
        )
    if args.n_heads % tp:
        found.append(
            f"n_heads = {args.n_heads} does not divide by tensor_parallel_degree = {tp}: each rank holds whole heads."
        )
    if args.ffn_dim % tp:
        found.append(
            f"the feed-forward width {args.ffn_dim} does not divide by tensor_parallel_degree = {tp}: set "
            "hidden_dim or "
            "multiple_of."
        )
    if args.vocab_size is not None and args.vocab_size < tp:
        found.append(f"vocab_size = {args.vocab_size} is smaller than tensor_parallel_degree = {tp}.")
    return found
