"""Arguments and flavors of Llama 3 (Grattafiori et al., 2024, arXiv:2407.21783), with the published shapes.

No torch here: a check or a plan reads them. Parameter counts of the flavors are tested against the published ones.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from titan.models.registry import ModelArgs

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


class RoPEScaling(BaseModel):
    """Frequency scaling of Llama 3.1 for contexts longer than `original_max_seq_len`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    factor: Positive = 8.0
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0
    original_max_seq_len: Count = 8192


class LlamaArgs(ModelArgs):
    """Shape of a Llama 3 model. `n_kv_heads = None` is one KV head a query head."""

    dim: Count = 4096
    n_layers: Count = 32
    n_heads: Count = 32
    n_kv_heads: Count | None = None
    head_dim: Count | None = None
    """None: dim / n_heads."""
    hidden_dim: Count | None = None
    """Width of the feed-forward; None derives it from `ffn_dim_multiplier` and `multiple_of`."""
    multiple_of: Count = 256
    ffn_dim_multiplier: Positive | None = None
    norm_eps: Positive = 1e-5
    rope_theta: Positive = 500_000.0
    rope_scaling: RoPEScaling | None = None
    tie_embeddings: bool = False
    init_std: Positive = 0.02
    """Standard deviation of every matrix; the two that write to the residual stream have it divided by sqrt(2 x
    n_layers).
    """

    @property
    def kv_heads(self) -> int:
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def head_size(self) -> int:
        return self.dim // self.n_heads if self.head_dim is None else self.head_dim

    @property
    def ffn_dim(self) -> int:
        """SwiGLU width: two thirds of 4 x dim, times the multiplier, rounded up to `multiple_of`."""
        if self.hidden_dim is not None:
            return self.hidden_dim
        width = int(2 * (4 * self.dim) / 3)
        if self.ffn_dim_multiplier is not None:
            width = int(self.ffn_dim_multiplier * width)
        return self.multiple_of * -(-width // self.multiple_of)


_LLAMA_3_1 = RoPEScaling()
_LLAMA_3_2 = RoPEScaling(factor=32.0)

FLAVORS: dict[str, LlamaArgs] = {
    "debugmodel": LlamaArgs(dim=256, n_layers=6, n_heads=16),
    "1B": LlamaArgs(
        dim=2048,
        n_layers=16,
        n_heads=32,
        n_kv_heads=8,
        hidden_dim=8192,
        vocab_size=128_256,
        rope_scaling=_LLAMA_3_2,
        tie_embeddings=True,
    ),
    "3B": LlamaArgs(
        dim=3072,
        n_layers=28,
        n_heads=24,
        n_kv_heads=8,
        hidden_dim=8192,
        vocab_size=128_256,
        rope_scaling=_LLAMA_3_2,
        tie_embeddings=True,
    ),
    "8B": LlamaArgs(
        dim=4096,
        n_layers=32,
        n_heads=32,
        n_kv_heads=8,
        multiple_of=1024,
        ffn_dim_multiplier=1.3,
        vocab_size=128_256,
        rope_scaling=_LLAMA_3_1,
    ),
    "70B": LlamaArgs(
        dim=8192,
        n_layers=80,
        n_heads=64,
        n_kv_heads=8,
        multiple_of=4096,
        ffn_dim_multiplier=1.3,
        vocab_size=128_256,
        rope_scaling=_LLAMA_3_1,
    ),
    "405B": LlamaArgs(
        dim=16384,
        n_layers=126,
        n_heads=128,
        n_kv_heads=8,
        multiple_of=4096,
        ffn_dim_multiplier=1.2,
        vocab_size=128_256,
        rope_scaling=_LLAMA_3_1,
    ),
}
