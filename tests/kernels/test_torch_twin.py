"""The twin against the formulas in its interface, written out token by token in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from baton.kernels import torch_twin
from baton.kernels.interface import AttentionBatch, PrefillSpan
from baton.kernels.torch_twin import TorchKernels

pytestmark = pytest.mark.torch

KERNELS = TorchKernels()
BLOCK = 4
HALVES = [(torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)]


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_linear_adds_the_bias() -> None:
    weight, bias, x = rand(3, 5), rand(3, seed=1), rand(2, 5, seed=2)
    torch.testing.assert_close(KERNELS.linear(weight, bias)(x), x @ weight.T + bias)
    torch.testing.assert_close(KERNELS.linear(weight, None)(x), x @ weight.T)


@pytest.mark.parametrize(("dtype", "tolerance"), HALVES)
def test_rms_norm(dtype: torch.dtype, tolerance: float) -> None:
    x, weight = rand(6, 32, dtype=dtype), rand(32, seed=1, dtype=dtype)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    got = KERNELS.rms_norm(x, weight, 1e-5)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact, atol=tolerance, rtol=tolerance)


def test_rms_norm_statistics_do_not_overflow_in_float16() -> None:
    # 300^2 = 90000 is past float16's largest number, 65504.
    x = torch.full((1, 8), 300.0, dtype=torch.float16)
    assert KERNELS.rms_norm(x, torch.ones(8, dtype=torch.float16), 1e-6).tolist() == [[1.0] * 8]


def test_add_rms_norm_returns_the_sum_too() -> None:
    x, residual, weight = rand(4, 16), rand(4, 16, seed=1), rand(16, seed=2)
    normed, total = KERNELS.add_rms_norm(x, residual, weight, 1e-6)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, KERNELS.rms_norm(x + residual, weight, 1e-6))


def test_rope_rotates_each_pair_by_its_angle() -> None:
    # Pair i of a head is (x[i], x[i + R/2]); as a complex number it is multiplied by e^(i angle).
    q, k, angles = rand(5, 4, 8), rand(5, 2, 8, seed=1), rand(5, 4, seed=2)
    for got, x in zip(KERNELS.rope(q, k, angles.cos(), angles.sin()), (q, k), strict=True):
        turned = torch.complex(x[..., :4], x[..., 4:]) * torch.exp(1j * angles)[:, None]
        torch.testing.assert_close(got, torch.cat((turned.real, turned.imag), -1))


def test_rope_leaves_dimensions_past_the_rotated_ones() -> None:
    q, k, angles = rand(3, 2, 8), rand(3, 1, 8, seed=1), rand(3, 2, seed=2)
    turned, _ = KERNELS.rope(q, k, angles.cos(), angles.sin())
    torch.testing.assert_close(turned[..., 4:], q[..., 4:])
    whole, _ = KERNELS.rope(q[..., :4], k[..., :4], angles.cos(), angles.sin())
    torch.testing.assert_close(turned[..., :4], whole)


def test_silu_mul_gates_with_the_first_half() -> None:
    gate, up = rand(3, 6), rand(3, 6, seed=1)
    torch.testing.assert_close(KERNELS.silu_mul(torch.cat((gate, up), -1)), gate / (1 + (-gate).exp()) * up)


class Pool:
    """One layer's KV view inside a bigger pool [P, H, L, 2, S, D], as models see it; unwritten places are NaN."""

    def __init__(self, kv_heads: int, dim: int, dtype: torch.dtype = torch.float32) -> None:
        self.whole = torch.full((20, kv_heads, 3, 2, BLOCK, dim), torch.nan, dtype=dtype)
        self.layer = self.whole[:, :, 1]
        self.free = torch.randperm(20, generator=torch.Generator().manual_seed(5)).tolist()

    def put(self, k: Tensor, v: Tensor) -> Tensor:
        """Store a sequence's k, v [n, H, D]; returns its block ids."""
        count = k.shape[0]
        blocks = torch.tensor([self.free.pop() for _ in range(math.ceil(count / BLOCK))])
        places = torch.arange(count)
        batch = make_batch(write_blocks=blocks[places // BLOCK], write_offsets=places % BLOCK)
        KERNELS.store_kv(k, v, self.layer, batch)
        return blocks


def make_batch(
    *,
    write_blocks: Tensor | None = None,
    write_offsets: Tensor | None = None,
    decodes: list[tuple[Tensor, int]] | None = None,
    prefills: tuple[PrefillSpan, ...] = (),
) -> AttentionBatch:
    """decodes: (block ids, length) of each."""
    decodes = decodes or []
    width = max((len(blocks) for blocks, _ in decodes), default=0)
    table = torch.zeros(len(decodes), width, dtype=torch.int64)
    for row, (blocks, _) in enumerate(decodes):
        table[row, : len(blocks)] = blocks
    lens = torch.tensor([length for _, length in decodes], dtype=torch.int64)
    none = torch.empty(0, dtype=torch.int64)
    return AttentionBatch(
        num_decodes=len(decodes),
        write_blocks=none if write_blocks is None else write_blocks,
        write_offsets=none if write_offsets is None else write_offsets,
        decode_blocks=table,
        decode_lens=lens,
        decode_mask=(torch.arange(width * BLOCK) < lens[:, None])[:, None, None, :],
        prefills=prefills,
    )


def exact_attention(q: Tensor, k: Tensor, v: Tensor, start: int, scale: float) -> Tensor:
    """One token and one head at a time, float64; q [t, N, D] at places start.., k and v [>= start + t, H, D]."""
    out = torch.empty(q.shape, dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for i in range(q.shape[0]):
        for head in range(q.shape[1]):
            keys = k[: start + i + 1, head // group].double()
            weights = (keys @ q[i, head].double() * scale).softmax(0)
            out[i, head] = weights @ v[: start + i + 1, head // group].double()
    return out


def test_store_kv_writes_only_its_places() -> None:
    pool = Pool(2, 4)
    k, v = rand(2, 2, 4), rand(2, 2, 4, seed=1)
    batch = make_batch(write_blocks=torch.tensor([7, 3]), write_offsets=torch.tensor([0, 2]))
    KERNELS.store_kv(k, v, pool.layer, batch)
    torch.testing.assert_close(pool.whole[7, :, 1, 0, 0], k[0])
    torch.testing.assert_close(pool.whole[3, :, 1, 1, 2], v[1])
    assert (~pool.whole.isnan()).sum() == 2 * 2 * 2 * 4


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize(("dtype", "tolerance"), HALVES)
def test_attention_of_a_mixed_step(heads: int, kv_heads: int, dtype: torch.dtype, tolerance: float) -> None:
    # Rows: decodes of length 1, 9 and 4 (a full block), then a whole prompt of 6 and a chunk of 5 after 7.
    pool = Pool(kv_heads, 8, dtype)
    lengths, starts = [1, 9, 4, 6, 12], [0, 8, 3, 0, 7]
    kvs = [(rand(n, kv_heads, 8, seed=n, dtype=dtype), rand(n, kv_heads, 8, seed=50 + n, dtype=dtype)) for n in lengths]
    blocks = [pool.put(k, v) for k, v in kvs]
    spans = (
        PrefillSpan(first_row=3, num_tokens=6, start=0, block_ids=blocks[3]),
        PrefillSpan(first_row=9, num_tokens=5, start=7, block_ids=blocks[4]),
    )
    batch = make_batch(decodes=list(zip(blocks[:3], lengths[:3], strict=True)), prefills=spans)
    q = rand(14, heads, 8, seed=9, dtype=dtype)
    got = KERNELS.attention(q, pool.layer, batch, 0.3)
    assert got.dtype == dtype
    rows = [q[0:1], q[1:2], q[2:3], q[3:9], q[9:14]]
    want = [exact_attention(row, k, v, start, 0.3) for row, (k, v), start in zip(rows, kvs, starts, strict=True)]
    torch.testing.assert_close(got.double(), torch.cat(want), atol=tolerance, rtol=tolerance)


def test_attention_slices_long_prefills(monkeypatch: pytest.MonkeyPatch) -> None:
    # 2 heads x 10 keys = 20 scores a query: slices of 3 queries, the last one shorter.
    pool = Pool(1, 8)
    k, v, q = rand(10, 1, 8), rand(10, 1, 8, seed=1), rand(8, 2, 8, seed=2)
    span = PrefillSpan(first_row=0, num_tokens=8, start=2, block_ids=pool.put(k, v))
    monkeypatch.setattr(torch_twin, "_MAX_SCORES", 60)
    got = KERNELS.attention(q, pool.layer, make_batch(prefills=(span,)), 0.3)
    torch.testing.assert_close(got.double(), exact_attention(q, k, v, 2, 0.3), atol=1e-6, rtol=1e-6)


def test_attention_reads_strided_queries() -> None:
    # Queries come as a slice of the fused q, k, v product.
    pool = Pool(1, 8)
    blocks = pool.put(rand(3, 1, 8), rand(3, 1, 8, seed=1))
    fused = rand(3, 4 * 8, seed=2)
    q = fused[:, : 2 * 8].view(3, 2, 8)
    batch = make_batch(prefills=(PrefillSpan(first_row=0, num_tokens=3, start=0, block_ids=blocks),))
    got = KERNELS.attention(q, pool.layer, batch, 1.0)
    torch.testing.assert_close(got, KERNELS.attention(q.contiguous(), pool.layer, batch, 1.0))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_moe_sums_weighted_experts(dtype: torch.dtype, tolerance: float) -> None:
    x = rand(7, 8, dtype=dtype)
    gate_up, down = rand(5, 12, 8, seed=1, dtype=dtype) / 4, rand(5, 8, 6, seed=2, dtype=dtype) / 4
    weights = rand(7, 2, seed=3, dtype=dtype).abs()
    experts = torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(t))[:2] for t in range(7)])
    want = torch.zeros(7, 8, dtype=torch.float64)
    for token in range(7):
        for place in range(2):
            expert = int(experts[token, place])
            gate, up = (gate_up[expert].double() @ x[token].double()).chunk(2)
            hidden = gate * gate.sigmoid() * up
            want[token] += weights[token, place].double() * (down[expert].double() @ hidden)
    got = KERNELS.moe(x, gate_up, down, weights, experts)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)
