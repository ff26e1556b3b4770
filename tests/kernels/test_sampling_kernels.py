"""Sampling kernels: known answers of SplitMix64, quality of the noise, total order, counts, penalties, masks."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from baton.kernels import sampling as ks

pytestmark = pytest.mark.torch

GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)


def keys_of(seed: int, index: int, positions: range) -> torch.Tensor:
    places = torch.tensor(list(positions))
    return ks.row_keys(torch.full_like(places, ks.stream_key(seed, index)), places)


def uniforms(noise: torch.Tensor) -> np.ndarray:
    """Undo the Gumbel transform: the distribution function exp(-exp(-x))."""
    return np.exp(-np.exp(-noise.numpy().astype(np.float64)))


def test_mix64_gives_the_published_outputs_of_splitmix64_seeded_with_0() -> None:
    # The test vector that is printed with implementations of SplitMix64 for seed 0.
    counters = torch.arange(1, 4) * GAMMA
    assert [x % (1 << 64) for x in ks.mix64(counters).tolist()] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_keys_follow_the_nested_streams() -> None:
    # seed 0: the first output of stream 0 starts the stream of the sequences; its first output is sequence 0.
    start = torch.tensor([0xE220A8397B1DCDAF - (1 << 64)])
    stream = ks.mix64(start + GAMMA)
    assert ks.stream_key(0, 0) == stream.item()
    assert ks.row_keys(stream, torch.tensor([0])).item() == ks.mix64(stream + GAMMA).item()


@pytest.mark.parametrize("seed", [0, 1, -1, -(1 << 63), (1 << 64) - 1])
def test_stream_keys_are_signed_64_bit_numbers(seed: int) -> None:
    assert -(1 << 63) <= ks.stream_key(seed, 7) < 1 << 63


def test_no_two_tokens_share_a_key() -> None:
    keys = torch.cat([keys_of(seed, index, range(500)) for seed in range(20) for index in range(8)])
    assert keys.unique().numel() == keys.numel()


@pytest.mark.parametrize("vocab_size", [1, 2, 49, 1000])
def test_noise_at_chosen_ids_is_the_noise_of_the_whole_row(vocab_size: int) -> None:
    keys = keys_of(3, 0, range(6))
    whole = ks.gumbel(keys, vocab_size)
    ids = torch.randint(vocab_size, (6, 37), generator=torch.Generator().manual_seed(0))
    assert torch.equal(ks.gumbel_at(keys, ids), whole.gather(1, ids))
    assert whole.shape == (6, vocab_size)


def test_noise_of_a_row_is_the_same_bits_alone_and_in_any_batch() -> None:
    keys = keys_of(9, 1, range(16))
    batch = ks.gumbel(keys, 1237)
    for i in range(16):
        assert torch.equal(ks.gumbel(keys[i : i + 1], 1237)[0], batch[i])


def test_noise_is_finite_at_both_ends_of_the_bits() -> None:
    # All 31 bits zero: u = 2^-32, -log(-log(1 - u)) = 32 log 2. All one: u is held at 1 - 2^-24.
    ends = ks._to_gumbel(torch.tensor([0, 0x7FFFFFFF, -1, -(1 << 31)], dtype=torch.int32))
    low = -math.log(24 * math.log(2))
    expected = torch.tensor([32 * math.log(2), low, low, 32 * math.log(2)])
    torch.testing.assert_close(ends, expected)


AXES = {
    "vocabulary": lambda: ks.gumbel(keys_of(0, 0, range(1)), 200_000).flatten(),
    "positions": lambda: ks.gumbel_at(keys_of(0, 0, range(100_000)), torch.full((100_000, 1), 17)).flatten(),
    "seeds": lambda: ks.gumbel_at(
        ks.row_keys(torch.tensor([ks.stream_key(s, 0) for s in range(50_000)]), torch.full((50_000,), 4)),
        torch.full((50_000, 1), 17),
    ).flatten(),
    "sequences": lambda: ks.gumbel_at(
        ks.row_keys(torch.tensor([ks.stream_key(5, i) for i in range(50_000)]), torch.full((50_000,), 4)),
        torch.full((50_000, 1), 17),
    ).flatten(),
}


@pytest.mark.parametrize("axis", AXES)
def test_noise_is_uniform_and_neighbours_are_independent(axis: str) -> None:
    u = uniforms(AXES[axis]())
    assert stats.kstest(u, "uniform").pvalue > 1e-4
    for lag in (1, 2):  # pairs on a 16 x 16 grid; lag 1 along ids also pairs the halves of one word
        grid, _, _ = np.histogram2d(u[:-lag:2], u[lag::2][: len(u[:-lag:2])], bins=16, range=[[0, 1], [0, 1]])
        assert stats.chisquare(grid.flatten()).pvalue > 1e-4


def test_rare_events_have_their_share() -> None:
    # P(noise > x) = 1 - exp(-exp(-x)), about 1e-4 at x = 9.21: 2000 of 2e7, standard deviation 45.
    count = sum(int((ks.gumbel(keys_of(s, 0, range(20)), 100_000) > 9.2103).sum()) for s in range(10))
    assert abs(count - 2000) < 5 * 45


def test_order_keys_sort_like_floats_with_lower_ids_first_among_equals() -> None:
    x = torch.tensor([[1.0, -torch.inf, 0.0, -0.0, 3.5, -2.0, 1.0, torch.inf, -1e-45, 1e-45]])
    order = ks.order_keys(x).argsort(-1, descending=True)[0].tolist()
    assert order == [7, 4, 0, 6, 9, 2, 3, 8, 5, 1]


def test_order_keys_agree_with_a_stable_sort() -> None:
    x = torch.randn(4, 5000, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16).to(torch.float32)
    _, expected = x.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(ks.order_keys(x).argsort(-1, descending=True), expected)


def test_count_tokens_ignores_what_is_not_kept() -> None:
    tokens = torch.tensor([[3, 3, 1, 0], [2, 2, 2, 999]], dtype=torch.int32)
    keep = torch.tensor([[True, True, True, False], [False, True, True, False]])
    assert ks.count_tokens(tokens, keep, 4).tolist() == [[0, 1, 0, 2], [0, 0, 2, 0]]


def test_penalties_by_hand() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 4.0]])
    prompt = torch.tensor([[1, 0, 0, 0]], dtype=torch.int32)
    output = torch.tensor([[0, 3, 0, 1]], dtype=torch.int32)
    one = torch.ones(1)
    got = ks.penalise(logits, prompt, output, 2 * one, 0.5 * one, 0.25 * one)
    # 2/2; -2*2 - 0.5 - 3*0.25; untouched; 4/2 - 0.5 - 0.25
    assert got.tolist() == [[1.0, -5.25, 1.0, 1.25]]


def test_mask_by_bits_reads_bit_31_and_a_partial_last_word() -> None:
    logits = torch.zeros(2, 40)
    bits = torch.tensor([[-(1 << 31), 1 << 7], [1, 0]], dtype=torch.int32)
    kept = ks.mask_by_bits(logits, bits) == 0.0
    assert kept[0].nonzero().flatten().tolist() == [31, 39]
    assert kept[1].nonzero().flatten().tolist() == [0]
