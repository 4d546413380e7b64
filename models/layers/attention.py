"""The attention core that every model calls: causal, grouped-query, the same signature on one device and on many.

`Attend` holds no parameter. A model makes it a child of each attention layer and hands it rotated queries and keys;
what runs behind it is SDPA on one device, or what a parallelism put into `impl`: context parallelism swaps all of them,
and no model knows. On CPU, `cpu_attention` cuts longer sequences; every CPU kernel takes grouped K/V heads as they are.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from titan.models.layers.cpu_attention import cpu_attention

AttendImpl = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q, k, v) to out, in the shapes of `Attend.forward`."""


class Attend(nn.Module):
    """Causal attention over the whole sequence, softmax(q k^T / sqrt(head_dim)) v.

    Attributes:
        impl: None for one device; else called in place of SDPA. Set before the model is compiled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.impl: AttendImpl | None = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q `(batch, heads, seq, head_dim)`, k and v `(batch, kv_heads, seq, head_dim)`, heads a multiple of kv_heads;
        returns out in the shape and dtype of q."""
        if self.impl is not None:
            return self.impl(q, k, v)
        if q.device.type == "cpu":
            return cpu_attention(q, k, v)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])

    def extra_repr(self) -> str:
        return "sdpa" if self.impl is None else repr(self.impl)
