"""Self-attention of one layer over the paged KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.core.model_config import ModelConfig
from baton.kernels.interface import Kernels
from baton.layers.context import ForwardContext
from baton.layers.norm import RmsNorm
from baton.layers.parallel import QkvLinear, RowLinear
from baton.layers.shard import Shard


class Attention:
    """Projections, optional norm of each head, rope, KV write, attention, output projection.

    Args:
        layer: index of its KV in the pool.
    """

    def __init__(
        self, config: ModelConfig, layer: int, *, shard: Shard, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._layer = layer
        self._head_dim = config.head_dim
        self._scale = config.head_dim**-0.5
        self.qkv = QkvLinear(
            config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            bias=config.attention_bias,
            shard=shard,
            dtype=dtype,
            device=device,
        )
        self._sizes = list(self.qkv.sizes.values())
        self.output = RowLinear(
            config.num_heads * config.head_dim,
            config.hidden_size,
            bias=config.output_bias,
            shard=shard,
            dtype=dtype,
            device=device,
        )
        self.q_norm: RmsNorm | None = None
        self.k_norm: RmsNorm | None = None
        if config.qk_norm:
            self.q_norm = RmsNorm(config.head_dim, config.rms_norm_eps, dtype=dtype, device=device)
            self.k_norm = RmsNorm(config.head_dim, config.rms_norm_eps, dtype=dtype, device=device)

    def finalize(self, kernels: Kernels) -> None:
        """Call once after loading."""
        self.qkv.finalize(kernels)
        self.output.finalize(kernels)

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, ctx: ForwardContext, rows: Tensor | None = None) -> Tensor:
        """x [T, M], cos and sin [T, D/2] of the rows' positions -> [T, M]; writes K and V of all rows.

        Args:
            rows: int64 [R], rows to return; all by default.
        """
        kernels, batch = ctx.kernels, ctx.attention
        parts = torch.split(self.qkv(x), self._sizes, dim=-1)
        q, k, v = (part.view(x.shape[0], -1, self._head_dim) for part in parts)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q, kernels), self.k_norm(k, kernels)
        q, k = kernels.rope(q, k, cos, sin)
        kv = ctx.kv[:, :, self._layer]
        kernels.store_kv(k, v, kv, batch)
        mixed = kernels.attention(q, kv, batch, self._scale).flatten(1)
        return self.output(mixed if rows is None else mixed[rows])
