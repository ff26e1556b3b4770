"""Mixture of experts: a router chooses top_k gated networks per token and mixes their results."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.core.model_config import MoeConfig
from baton.kernels.interface import Kernels
from baton.layers.context import ForwardContext
from baton.layers.parallel import ColumnLinear
from baton.layers.shard import WHOLE, Shard


class Moe:
    """Every rank holds a slice of each expert's width (tensor parallel), and the whole router.

    Weights: gate_up [E, 2F, M] with gate rows before up rows, down [E, M, F], F of this rank.
    """

    def __init__(self, width: int, moe: MoeConfig, *, shard: Shard, dtype: torch.dtype, device: torch.device) -> None:
        self._moe = moe
        self._shard = shard
        inner = shard.split(moe.intermediate_size, "moe_intermediate_size")
        self.router = ColumnLinear(width, moe.num_experts, bias=False, shard=WHOLE, dtype=dtype, device=device)
        self.gate_up = torch.empty(moe.num_experts, 2 * inner, width, dtype=dtype, device=device)
        self.down = torch.empty(moe.num_experts, width, inner, dtype=dtype, device=device)

    def load_expert(self, expert: int, part: str, tensor: Tensor) -> None:
        """Keep this rank's slice of one expert's full projection; part is "gate", "up" or "down"."""
        if part == "down":
            self.down[expert].copy_(self._shard.part(tensor, 1))
            return
        inner = self.down.shape[-1]
        first = 0 if part == "gate" else inner
        self.gate_up[expert, first : first + inner].copy_(self._shard.part(tensor, 0))

    def finalize(self, kernels: Kernels) -> None:
        """Call once after loading."""
        self.router.finalize(kernels)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[T, M] -> weights [T, K] in x's dtype, experts int64 [T, K]; softmax over all experts in float32."""
        probabilities = self.router(x).float().softmax(-1)
        weights, experts = probabilities.topk(self._moe.top_k, dim=-1)
        if self._moe.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(x.dtype), experts

    def __call__(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """[T, M] -> [T, M]."""
        weights, experts = self.route(x)
        return self._shard.all_reduce(ctx.kernels.moe(x, self.gate_up, self.down, weights, experts))
