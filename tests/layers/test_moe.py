"""Routing and sharding of expert layers. Right values: the formulas of Qwen3-MoE, written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton.core.errors import ConfigError
from baton.core.model_config import MoeConfig
from baton.kernels.torch_twin import TorchKernels
from baton.layers.moe import Moe
from baton.layers.shard import WHOLE, Shard

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
WIDTH, INNER, EXPERTS = 8, 12, 5


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def build(shard: Shard, *, normed: bool = False, top_k: int = 2) -> Moe:
    config = MoeConfig(num_experts=EXPERTS, top_k=top_k, intermediate_size=INNER, norm_topk_prob=normed)
    moe = Moe(WIDTH, config, shard=shard, dtype=torch.float32, device=CPU)
    moe.router.load("only", "weight", rand(EXPERTS, WIDTH))
    for expert in range(EXPERTS):
        moe.load_expert(expert, "gate", rand(INNER, WIDTH, seed=10 + expert))
        moe.load_expert(expert, "up", rand(INNER, WIDTH, seed=20 + expert))
        moe.load_expert(expert, "down", rand(WIDTH, INNER, seed=30 + expert))
    moe.finalize(TorchKernels())
    return moe


@pytest.mark.parametrize("normed", [False, True])
def test_route_takes_the_likeliest_experts(normed: bool) -> None:
    x = rand(6, WIDTH, seed=1)
    weights, experts = build(WHOLE, normed=normed).route(x)
    for token in range(6):
        logits = (rand(EXPERTS, WIDTH) @ x[token]).double()
        probabilities = logits.exp() / logits.exp().sum()
        order = sorted(range(EXPERTS), key=lambda e: -float(probabilities[e]))[:2]
        assert experts[token].tolist() == order
        want = probabilities[order] / (probabilities[order].sum() if normed else 1.0)
        torch.testing.assert_close(weights[token].double(), want, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_sum_to_the_whole(size: int) -> None:
    x, kernels = rand(6, WIDTH, seed=1), TorchKernels()

    def run(shard: Shard) -> Tensor:
        moe = build(shard)
        return kernels.moe(x, moe.gate_up, moe.down, *moe.route(x))

    torch.testing.assert_close(sum(run(Shard(rank, size)) for rank in range(size)), run(WHOLE))


def test_width_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match="moe_intermediate_size=12 cannot be split over tensor_parallel_size=5"):
        build(Shard(0, 5))
