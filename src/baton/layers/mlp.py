"""Gated feed-forward network: down(silu(gate x) * up x)."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.interface import Kernels
from baton.layers.context import ForwardContext
from baton.layers.parallel import MergedColumnLinear, RowLinear
from baton.layers.shard import Shard


class Mlp:
    """`inner` wide between two projections of `width`; gate and up are one product."""

    def __init__(
        self, width: int, inner: int, *, bias: bool, shard: Shard, dtype: torch.dtype, device: torch.device
    ) -> None:
        shard.split(inner, "intermediate_size")
        self.gate_up = MergedColumnLinear(
            width, {"gate": inner, "up": inner}, bias=bias, shard=shard, dtype=dtype, device=device
        )
        self.down = RowLinear(inner, width, bias=bias, shard=shard, dtype=dtype, device=device)

    def finalize(self, kernels: Kernels) -> None:
        """Call once after loading."""
        self.gate_up.finalize(kernels)
        self.down.finalize(kernels)

    def __call__(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """[T, M] -> [T, M]."""
        return self.down(ctx.kernels.silu_mul(self.gate_up(x)))
