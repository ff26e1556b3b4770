"""Whole models cut over ranks that run as threads: every rank's logits equal the uncut model's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3MoeConfig

from baton.core.config import LoadFormat
from baton.layers.shard import Shard
from tests.models.harness import TINY, Cache, load, prompt, save_oracle

pytestmark = pytest.mark.torch

CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    # 131 rows of vocabulary do not divide by 2 or 4; 2 KV heads are fewer than 4 ranks.
    "llama-biases": lambda: LlamaConfig(**TINY, attention_bias=True, mlp_bias=True),
    "qwen2-tied": lambda: Qwen2Config(**TINY, tie_word_embeddings=True),
    "qwen3moe": lambda: Qwen3MoeConfig(
        **TINY, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=16, mlp_only_layers=[1]
    ),
}


class ThreadCollective:
    """`Collective` between threads: all put a tensor on the table, wait, and read."""

    def __init__(self, rank: int, table: list[Tensor | None], barrier: threading.Barrier) -> None:
        self._rank, self._table, self._barrier = rank, table, barrier

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self._table[self._rank] = x
        self._barrier.wait()
        everyone = [part.clone() for part in self._table if part is not None]
        self._barrier.wait()
        return everyone

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self._exchange(x)).sum(0)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._exchange(x), -1)


def run_ranks(size: int, work: Callable[[Shard], Tensor]) -> list[Tensor]:
    """work's result on each rank."""
    table: list[Tensor | None] = [None] * size
    barrier = threading.Barrier(size, timeout=30)

    def rank_work(rank: int) -> Tensor:
        try:
            return work(Shard(rank, size, ThreadCollective(rank, table, barrier)))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank_work, range(size)))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_ranks_together_equal_one(name: str, size: int, tmp_path: Path) -> None:
    save_oracle(tmp_path, CONFIGS[name]())
    tokens = prompt(30)
    want = Cache(load(tmp_path)).run(tokens, 11)
    for got in run_ranks(size, lambda shard: Cache(load(tmp_path, shard=shard)).run(tokens, 11)):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=0)


def test_dummy_weights_do_not_depend_on_the_ranks(tmp_path: Path) -> None:
    save_oracle(tmp_path, CONFIGS["qwen3moe"]())
    tokens = prompt(30)
    want = Cache(load(tmp_path, load_format=LoadFormat.DUMMY)).run(tokens, 30)

    def work(shard: Shard) -> Tensor:
        return Cache(load(tmp_path, shard=shard, load_format=LoadFormat.DUMMY)).run(tokens, 30)

    for got in run_ranks(2, work):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("size", "kv_heads"), [(1, 2), (2, 1), (4, 1)])
def test_cache_specs_count_this_ranks_heads(size: int, kv_heads: int, tmp_path: Path) -> None:
    save_oracle(tmp_path, CONFIGS["llama-biases"]())
    (spec,) = load(tmp_path, shard=Shard(size - 1, size)).model.cache_specs()
    assert spec.num_kv_heads == kv_heads
