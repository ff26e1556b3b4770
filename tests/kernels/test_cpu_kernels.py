"""The CPU kernels against formulas in float32 or float64 on the same (rounded) inputs.

The twin's own tests prove the twin; here the shapes are those the fast paths care about: ragged batches, groups of 1, 3
and 4 query heads, head widths 16 to 128, blocks of 8 to 32 tokens, tiles of prefill queries.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from baton.kernels import cpu_attention
from baton.kernels.cpu import CpuKernels
from baton.kernels.cpu_linear import can_pack, make_linear
from baton.kernels.interface import AttentionBatch, PrefillSpan
from baton.kernels.select import select_kernels
from baton.kernels.torch_twin import TorchKernels

pytestmark = pytest.mark.torch

KERNELS = CpuKernels()
TWIN = TorchKernels()
# (dtype, tolerance): sums of float32, and one rounding step of a bfloat16 (2^-8) on numbers around 1.
DTYPES = [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)]


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 8, 65])
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 64), (17, 33), (1, 5)])
def test_linear(dtype: torch.dtype, tolerance: float, rows: int, outputs: int, inputs: int) -> None:
    weight, bias = rand(outputs, inputs, dtype=dtype) / inputs**0.5, rand(outputs, seed=1, dtype=dtype)
    x = rand(rows, inputs, seed=2, dtype=dtype)
    for b in (None, bias):
        want = x.double() @ weight.double().T + (0 if b is None else b.double())
        got = KERNELS.linear(weight.clone(), b)(x)
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear_takes_any_leading_shape(dtype: torch.dtype) -> None:
    weight = rand(6, 4, dtype=dtype)
    op = KERNELS.linear(weight, None)
    wide = rand(5, 8, seed=1, dtype=dtype)
    torch.testing.assert_close(op(wide[:, 2:6]), wide[:, 2:6] @ weight.T)  # rows that do not touch
    torch.testing.assert_close(op(wide[:, :4].view(1, 5, 4)), (wide[:, :4] @ weight.T).view(1, 5, 6))
    assert op(wide[:0, :4]).shape == (0, 6)  # a step that samples nothing


def test_linear_does_not_follow_later_changes_of_a_packed_weight() -> None:
    # A packed operation owns its memory, so the loader may reuse or free the plain weight.
    weight = torch.eye(32)
    op = make_linear(weight, None)
    if can_pack(weight):
        weight.zero_()
    torch.testing.assert_close(op(torch.ones(1, 32)), torch.ones(1, 32))


def test_linear_in_other_dtypes_is_not_packed() -> None:
    weight, x = rand(3, 5, dtype=torch.float64), rand(2, 5, seed=1, dtype=torch.float64)
    assert not can_pack(weight)
    torch.testing.assert_close(KERNELS.linear(weight, None)(x), x @ weight.T)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_rms_norm_and_its_residual(dtype: torch.dtype, tolerance: float) -> None:
    x, residual = rand(5, 3, 32, dtype=dtype), rand(5, 3, 32, seed=1, dtype=dtype)
    weight = rand(32, seed=2, dtype=dtype)

    def exact(value: Tensor) -> Tensor:
        wide = value.double()
        return wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()

    got = KERNELS.rms_norm(x, weight, 1e-5)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact(x), atol=tolerance, rtol=tolerance)
    normed, total = KERNELS.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(normed.double(), exact(total), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("rotated", [16, 6])
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_rope_turns_pairs_and_leaves_its_inputs(
    fused: bool, rotated: int, dtype: torch.dtype, tolerance: float
) -> None:
    # Pair i of a head is (x[i], x[i + R/2]); as a complex number it is multiplied by e^(i angle).
    qkv = rand(7, (4 + 2 + 2) * 16, dtype=dtype)
    q, k, _ = (part.view(7, -1, 16) for part in qkv.split([64, 32, 32], dim=-1))
    if not fused:
        q, k = q.clone(), k.clone()
    before, angles = qkv.clone(), rand(7, rotated // 2, seed=1)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    for got, x in zip(KERNELS.rope(q, k, cos, sin), (q, k), strict=True):
        wide, half = x.double(), rotated // 2
        turn = torch.complex(cos.double(), sin.double())[:, None]
        turned = torch.complex(wide[..., :half], wide[..., half:rotated]) * turn
        want = torch.cat((turned.real, turned.imag, wide[..., rotated:]), -1)
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)
    assert torch.equal(qkv, before)


def test_rope_of_neighbours_that_are_not_adjacent() -> None:
    # Same memory and strides, but a gap between q and k: they must not be read as one.
    whole = rand(3, 10, 8)
    q, k, angles = whole[:, 0:4], whole[:, 5:7], rand(3, 4, seed=1)
    got = KERNELS.rope(q, k, angles.cos(), angles.sin())
    want = TWIN.rope(q, k, angles.cos(), angles.sin())
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_silu_mul(dtype: torch.dtype, tolerance: float) -> None:
    gate, up = rand(3, 40, dtype=dtype), rand(3, 40, seed=1, dtype=dtype)
    gate_up = torch.cat((gate, up), -1)
    before = gate_up.clone()
    want = gate.double() * gate.double().sigmoid() * up.double()
    torch.testing.assert_close(KERNELS.silu_mul(gate_up).double(), want, atol=tolerance, rtol=tolerance)
    assert torch.equal(gate_up, before)


class Pool:
    """One layer's KV view inside a pool [P, H, L, 2, S, D]; places nobody wrote are NaN."""

    def __init__(self, kv_heads: int, dim: int, block: int, dtype: torch.dtype) -> None:
        self.block = block
        self.whole = torch.full((40, kv_heads, 3, 2, block, dim), torch.nan, dtype=dtype)
        self.layer = self.whole[:, :, 1]
        self._free = torch.randperm(40, generator=torch.Generator().manual_seed(5)).tolist()

    def put(self, k: Tensor, v: Tensor) -> Tensor:
        """Store a sequence's k, v [n, H, D]; returns its block ids."""
        places = torch.arange(k.shape[0])
        blocks = torch.tensor([self._free.pop() for _ in range(math.ceil(k.shape[0] / self.block))])
        none = torch.empty(0, dtype=torch.int64)
        batch = AttentionBatch(
            num_decodes=0,
            write_blocks=blocks[places // self.block],
            write_offsets=places % self.block,
            decode_blocks=none.view(0, 0),
            decode_lens=none,
            decode_mask=torch.empty(0, 1, 1, 0, dtype=torch.bool),
            prefills=(),
        )
        KERNELS.store_kv(k, v, self.layer, batch)
        return blocks


def mixed_batch(
    decodes: list[tuple[Tensor, int]], spans: tuple[PrefillSpan, ...], block: int, dtype: torch.dtype, *, derived: bool
) -> AttentionBatch:
    """decodes: (block ids, length); `derived` fills the optional fields too."""
    width = max((len(blocks) for blocks, _ in decodes), default=0)
    table = torch.zeros(len(decodes), width, dtype=torch.int64)
    for row, (blocks, _) in enumerate(decodes):
        table[row, : len(blocks)] = blocks
    lens = torch.tensor([length for _, length in decodes], dtype=torch.int64)
    mask = (torch.arange(width * block) < lens[:, None])[:, None, None, :]
    none = torch.empty(0, dtype=torch.int64)
    return AttentionBatch(
        num_decodes=len(decodes),
        write_blocks=none,
        write_offsets=none,
        decode_blocks=table,
        decode_lens=lens,
        decode_mask=mask,
        prefills=spans,
        decode_bias=torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -math.inf) if derived else None,
        decode_unseen=(~mask).flatten().nonzero().flatten() if derived else None,
    )


def exact_attention(q: Tensor, k: Tensor, v: Tensor, start: int, scale: float) -> Tensor:
    """float64 on the rounded inputs; q [t, N, D] at places start.., k and v [start + t, H, D]."""
    group = q.shape[1] // k.shape[1]
    keys, values = (x.double().repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
    scores = q.double().transpose(0, 1) @ keys.mT * scale
    future = torch.arange(k.shape[0]) > torch.arange(start, start + q.shape[0])[:, None]
    return (scores.masked_fill(future, -math.inf).softmax(-1) @ values).transpose(0, 1)


def check_attention(
    lengths: list[int],
    chunks: list[tuple[int, int]],
    heads: tuple[int, int],
    dim: int,
    block: int,
    dtype: torch.dtype,
    tolerance: float,
    *,
    derived: bool = True,
) -> None:
    """Decodes of these lengths, then chunks (start, tokens), in one step, against `exact_attention`."""
    query_heads, kv_heads = heads
    pool = Pool(kv_heads, dim, block, dtype)
    ends = lengths + [start + count for start, count in chunks]
    starts = [length - 1 for length in lengths] + [start for start, _ in chunks]
    kvs = [
        (rand(n, kv_heads, dim, seed=i, dtype=dtype), rand(n, kv_heads, dim, seed=90 + i, dtype=dtype))
        for i, n in enumerate(ends)
    ]
    blocks = [pool.put(k, v) for k, v in kvs]
    spans, row = [], len(lengths)
    for (start, count), ids in zip(chunks, blocks[len(lengths) :], strict=True):
        spans.append(PrefillSpan(first_row=row, num_tokens=count, start=start, block_ids=ids))
        row += count
    decodes = list(zip(blocks[: len(lengths)], lengths, strict=True))
    batch = mixed_batch(decodes, tuple(spans), block, dtype, derived=derived)
    q = rand(row, query_heads, dim, seed=777, dtype=dtype)
    scale = dim**-0.5
    got = KERNELS.attention(q, pool.layer, batch, scale)
    assert got.shape == q.shape and got.dtype == dtype
    rows = q.split([end - start for start, end in zip(starts, ends, strict=True)])
    want = [exact_attention(part, k, v, start, scale) for part, (k, v), start in zip(rows, kvs, starts, strict=True)]
    torch.testing.assert_close(got.double(), torch.cat(want), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("heads", [(2, 2), (9, 3), (4, 1)])
@pytest.mark.parametrize(("dim", "block"), [(16, 8), (64, 16), (128, 32)])
def test_attention_of_a_mixed_ragged_step(
    dtype: torch.dtype, tolerance: float, heads: tuple[int, int], dim: int, block: int
) -> None:
    lengths = [1, 3 * block, block + 1, 17]
    check_attention(lengths, [(0, block + 3), (block - 1, 5), (2 * block, 1)], heads, dim, block, dtype, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("length", [1, 8, 13])
def test_attention_of_a_single_decode(dtype: torch.dtype, tolerance: float, length: int) -> None:
    check_attention([length], [], (9, 3), 64, 8, dtype, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_attention_derives_what_the_batch_does_not_say(dtype: torch.dtype, tolerance: float) -> None:
    check_attention([5, 16, 30], [], (8, 2), 32, 8, dtype, tolerance, derived=False)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_attention_of_a_prompt_in_several_tiles(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tolerance: float
) -> None:
    # 50 queries in tiles of 16: three full ones and a short one, after 20 cached tokens and from the first token.
    monkeypatch.setattr(cpu_attention, "_TILE_ROWS", 16)
    check_attention([], [(20, 50), (0, 50)], (6, 2), 16, 8, dtype, tolerance)


def test_store_kv_writes_only_its_places() -> None:
    pool = Pool(2, 4, 8, torch.bfloat16)
    k, v = rand(9, 2, 4, dtype=torch.bfloat16), rand(9, 2, 4, seed=1, dtype=torch.bfloat16)
    first, second = pool.put(k, v).tolist()
    assert torch.equal(pool.whole[first, :, 1, 0], k[:8].transpose(0, 1))
    assert torch.equal(pool.whole[second, :, 1, 1, 0], v[8])
    assert (~pool.whole.isnan()).sum() == 9 * 2 * 2 * 4


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("tokens", [1, 7])
def test_moe_sums_weighted_experts(dtype: torch.dtype, tolerance: float, tokens: int) -> None:
    x = rand(tokens, 8, dtype=dtype)
    gate_up, down = rand(5, 12, 8, seed=1, dtype=dtype) / 4, rand(5, 8, 6, seed=2, dtype=dtype) / 4
    weights = rand(tokens, 2, seed=3, dtype=dtype).abs()
    experts = torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(t))[:2] for t in range(tokens)])
    want = torch.zeros(tokens, 8, dtype=torch.float64)
    for token in range(tokens):
        for weight, expert in zip(weights[token], experts[token].tolist(), strict=True):
            gate, up = (gate_up[expert].double() @ x[token].double()).chunk(2)
            want[token] += weight.double() * (down[expert].double() @ (gate * gate.sigmoid() * up))
    got = KERNELS.moe(x, gate_up, down, weights, experts)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)


def test_select_kernels() -> None:
    assert isinstance(select_kernels("cpu"), CpuKernels)
    assert isinstance(select_kernels("cuda:0"), TorchKernels)
