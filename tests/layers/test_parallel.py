"""Each sharded layer, cut over 2, 3 or 4 ranks and put together by hand, equals the whole layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton.core.errors import ConfigError, ModelError
from baton.kernels.torch_twin import TorchKernels
from baton.layers.parallel import (
    ColumnLinear,
    LmHead,
    MergedColumnLinear,
    QkvLinear,
    RowLinear,
    VocabEmbedding,
    kv_copies,
)
from baton.layers.shard import Shard

pytestmark = pytest.mark.torch

KERNELS = TorchKernels()
F32 = torch.float32
CPU = torch.device("cpu")
WIDTH = 8


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ranks(size: int) -> list[Shard]:
    return [Shard(rank, size) for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_column_parts_follow_each_other(size: int) -> None:
    weight, bias, x = rand(12, WIDTH), rand(12, seed=1), rand(3, WIDTH, seed=2)
    parts = []
    for shard in ranks(size):
        layer = ColumnLinear(WIDTH, 12, bias=True, shard=shard, dtype=F32, device=CPU)
        layer.load("only", "weight", weight)
        layer.load("only", "bias", bias)
        layer.finalize(KERNELS)
        parts.append(layer(x))
    torch.testing.assert_close(torch.cat(parts, -1), x @ weight.T + bias)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_merged_columns_keep_gate_and_up_of_the_same_rows(size: int) -> None:
    weights = {"gate": rand(12, WIDTH), "up": rand(12, WIDTH, seed=1)}
    x = rand(3, WIDTH, seed=2)
    gates, ups = [], []
    for shard in ranks(size):
        layer = MergedColumnLinear(WIDTH, {"gate": 12, "up": 12}, bias=False, shard=shard, dtype=F32, device=CPU)
        for name, weight in weights.items():
            layer.load(name, "weight", weight)
        layer.finalize(KERNELS)
        gate, up = layer(x).chunk(2, -1)
        gates.append(gate)
        ups.append(up)
    torch.testing.assert_close(torch.cat(gates, -1), x @ weights["gate"].T)
    torch.testing.assert_close(torch.cat(ups, -1), x @ weights["up"].T)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_rows_sum_up_with_one_bias(size: int) -> None:
    weight, bias, x = rand(5, 12), rand(5, seed=1), rand(3, 12, seed=2)
    total = torch.zeros(3, 5)
    for shard in ranks(size):
        layer = RowLinear(12, 5, bias=True, shard=shard, dtype=F32, device=CPU)
        layer.load("weight", weight)
        layer.load("bias", bias)
        layer.finalize(KERNELS)
        total += layer(shard.part(x, 1))
    torch.testing.assert_close(total, x @ weight.T + bias)


@pytest.mark.parametrize(
    ("size", "kv_heads", "of_rank"),
    [
        (1, 2, [[0, 1]]),
        (2, 2, [[0], [1]]),
        (4, 2, [[0], [0], [1], [1]]),
        (4, 1, [[0]] * 4),
        (4, 8, [[0, 1], [2, 3], [4, 5], [6, 7]]),
    ],
)
def test_key_value_heads_live_next_to_their_query_heads(size: int, kv_heads: int, of_rank: list[list[int]]) -> None:
    heads, dim = 8, 2
    full = {"q": rand(heads * dim, WIDTH), "k": rand(kv_heads * dim, WIDTH), "v": rand(kv_heads * dim, WIDTH, seed=3)}
    x = rand(1, WIDTH, seed=2)
    want = {name: (x @ weight.T).view(-1, dim) for name, weight in full.items()}
    for shard, held in zip(ranks(size), of_rank, strict=True):
        layer = QkvLinear(
            WIDTH, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, bias=False, shard=shard, dtype=F32, device=CPU
        )
        for name, weight in full.items():
            layer.load(name, "weight", weight)
        layer.finalize(KERNELS)
        q, k, v = (part.view(-1, dim) for part in layer(x).split(list(layer.sizes.values()), -1))
        mine = slice(shard.rank * heads // size, (shard.rank + 1) * heads // size)
        torch.testing.assert_close(q, want["q"][mine])
        torch.testing.assert_close(k, want["k"][held])
        torch.testing.assert_close(v, want["v"][held])
        assert len(held) == kv_heads * kv_copies(kv_heads, shard) // size
        # Local query head n reads local key/value head n // (N / H): the same one as in the whole model.
        for n in range(heads // size):
            assert held[n // (heads // size // len(held))] == (mine.start + n) // (heads // kv_heads)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "words"),
    [(6, 2, 4, "num_attention_heads=6"), (12, 3, 4, "num_key_value_heads=3"), (6, 2, 3, "num_key_value_heads=2")],
)
def test_heads_that_do_not_divide_are_refused(heads: int, kv_heads: int, size: int, words: str) -> None:
    # head_dim 12 divides by the size although the number of heads does not.
    with pytest.raises(ConfigError, match=f"{words} cannot be split over tensor_parallel_size={size}"):
        QkvLinear(
            WIDTH,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=12,
            bias=False,
            shard=Shard(0, size),
            dtype=F32,
            device=CPU,
        )


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_embedding_rows_come_from_one_rank(size: int) -> None:
    # 10 rows over 3 or 4 ranks: the last share is padded.
    table, ids = rand(10, WIDTH), torch.tensor([0, 9, 4, 5, 3, 2, 9])
    total = torch.zeros(7, WIDTH)
    for shard in ranks(size):
        layer = VocabEmbedding(10, WIDTH, shard=shard, dtype=F32, device=CPU)
        layer.load(table)
        total += layer(ids)
    assert torch.equal(total, table[ids])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_logits_of_all_ranks_side_by_side(size: int, tied: bool) -> None:
    table, hidden = rand(10, WIDTH), rand(3, WIDTH, seed=1)
    parts = []
    for shard in ranks(size):
        embedding = VocabEmbedding(10, WIDTH, shard=shard, dtype=F32, device=CPU)
        embedding.load(table)
        head = LmHead(10, WIDTH, tied=embedding if tied else None, shard=shard, dtype=F32, device=CPU)
        if not tied:
            head.load(table)
        head.finalize(KERNELS)
        parts.append(head(hidden))
    torch.testing.assert_close(torch.cat(parts, -1)[:, :10], hidden @ table.T)


def test_logits_are_float32_in_any_dtype() -> None:
    head = LmHead(10, WIDTH, tied=None, shard=Shard(), dtype=torch.bfloat16, device=CPU)
    head.load(rand(10, WIDTH))
    head.finalize(KERNELS)
    assert head(rand(2, WIDTH).bfloat16()).dtype == F32


def test_tied_head_refuses_another_weight() -> None:
    embedding = VocabEmbedding(10, WIDTH, shard=Shard(), dtype=F32, device=CPU)
    embedding.load(rand(10, WIDTH))
    head = LmHead(10, WIDTH, tied=embedding, shard=Shard(), dtype=F32, device=CPU)
    head.load(rand(10, WIDTH, seed=1))
    with pytest.raises(ModelError, match=r"lm_head.weight differs"):
        head.finalize(KERNELS)


def test_finalize_lets_go_of_the_weight() -> None:
    layer = ColumnLinear(WIDTH, 4, bias=True, shard=Shard(), dtype=F32, device=CPU)
    layer.finalize(KERNELS)
    assert layer.weight is None
    assert layer.bias is None
