"""Every byte once and from the right place, with ranks emulated in memory; and as few descriptors as promised."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from baton.core.geometry import RankGeometry
from baton.transfer.agent import Moves
from baton.transfer.mapping import Share, map_ranks
from baton.transfer.moves import BlocksError, kv_moves, num_bytes
from tests.transfer.test_mapping import LAYERS, SIZES, ranks

BLOCK_SIZES = (8, 16, 32, 64)
PLACES = np.arange(8 * LAYERS * 2 * 160).reshape(8, LAYERS, 2, 160)
"""[head, layer, K|V, token]: a name for each of a model of 8 heads and 160 tokens."""


class RankMemory:
    """A rank's pool with one integer in place of each byte: which byte of the model's KV it is; -1: nobody's.

    `cells` has the axes of the design, [block, kv_head, layer, K|V, token, byte], so an address is a place in its
    flattened form; nothing of the code under test is used to fill it or to look at it.
    """

    def __init__(self, rank: RankGeometry) -> None:
        self.rank = rank
        shape = (rank.num_blocks, rank.num_heads, rank.num_layers, 2, rank.block_tokens, rank.token_bytes)
        self.cells = np.full(shape, -1, np.int64)
        self.writes = np.zeros(shape, np.int32)

    def kv(self, first_token: int, last_token: int) -> NDArray[np.int64]:
        """[heads, layers, 2, tokens, bytes]: names of the bytes that this rank holds of these tokens."""
        rank = self.rank
        heads = slice(rank.first_head, rank.first_head + rank.num_heads)
        layers = slice(rank.first_layer, rank.first_layer + rank.num_layers)
        places = PLACES[heads, layers, :, first_token:last_token]
        return places[..., None] * rank.token_bytes + np.arange(rank.token_bytes)

    def fill(self, blocks: Sequence[int], num_tokens: int) -> None:
        """Write the KV of tokens [0, num_tokens)."""
        for block, kv in self._kv_by_block(blocks, 0, num_tokens):
            self.cells[block, :, :, :, : kv.shape[3]] = kv

    def _kv_by_block(
        self, blocks: Sequence[int], first_token: int, num_tokens: int
    ) -> Iterator[tuple[int, NDArray[np.int64]]]:
        for block in blocks:
            last = min(first_token + self.rank.block_tokens, num_tokens)
            yield block, self.kv(first_token, last)
            first_token = last

    def places(self, addresses: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Flat index of every byte of these runs."""
        offsets = addresses - self.rank.base_address
        assert (lengths > 0).all(), "an empty move"
        assert (offsets >= 0).all() and (offsets + lengths <= self.cells.size).all(), "outside the pool"
        before = np.cumsum(lengths) - lengths
        return np.arange(lengths.sum()) + np.repeat(offsets - before, lengths)

    def receive(self, giver: RankMemory, moves: Moves) -> None:
        """What an agent does with the moves."""
        source, target = giver.places(moves[:, 0], moves[:, 2]), self.places(moves[:, 1], moves[:, 2])
        self.cells.reshape(-1)[target] = giver.cells.reshape(-1)[source]
        np.add.at(self.writes.reshape(-1), target, 1)

    def assert_received(self, blocks: Sequence[int], first_token: int, num_tokens: int) -> None:
        """Tokens [first_token, num_tokens) are in `blocks`, each byte written once; no byte of another block was."""
        for block, kv in self._kv_by_block(blocks, first_token, num_tokens):
            assert (self.cells[block, :, :, :, : kv.shape[3]] == kv).all(), "bytes of the wrong place"
            assert (self.writes[block, :, :, :, : kv.shape[3]] == 1).all(), "bytes not written exactly once"
        others = np.setdiff1d(np.arange(self.rank.num_blocks), blocks)
        assert not self.writes[others].any(), "blocks outside the list were touched"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A hand-off: tokens [cached, tokens) go over when they are final, at `ends` (the last is `tokens`)."""

    tokens: int
    cached: int
    ends: tuple[int, ...]


def random_prompt(rng: Random, taker_tokens: int, limit: int) -> Prompt:
    tokens = rng.randint(1, limit)
    cached = rng.choice((0, rng.randrange(0, tokens, taker_tokens), tokens if rng.random() < 0.1 else 0))
    ends = sorted(rng.randint(0, tokens) for _ in range(rng.randint(0, 2)))
    return Prompt(tokens=tokens, cached=cached, ends=(*ends, tokens))


def random_blocks(rng: Random, rank: RankGeometry, num_tokens: int) -> list[int]:
    """Distinct blocks for so many tokens, partly neighbours."""
    count = -(-num_tokens // rank.block_tokens)
    blocks = rng.sample(range(rank.num_blocks), count)
    if rng.random() < 0.5:
        first = rng.randint(0, rank.num_blocks - count)
        near = list(range(first, first + count))
        blocks = near if rng.random() < 0.5 else near[::-1]
    return blocks


MoveMaker = Callable[..., Moves]


def hand_over(
    givers: Sequence[RankGeometry],
    takers: Sequence[RankGeometry],
    prompt: Prompt,
    rng: Random,
    *,
    make: MoveMaker = kv_moves,
    shares_of: Callable[[tuple[Share, ...]], Sequence[Share]] = lambda shares: shares,
) -> None:
    """A whole hand-off as progressive push does it: full blocks of the giver as they become final, then the rest."""
    shares = shares_of(map_ranks(givers, takers))
    giver_blocks = random_blocks(rng, givers[0], prompt.tokens)
    taker_blocks = random_blocks(rng, takers[0], prompt.tokens - prompt.cached)
    sources, targets = [RankMemory(rank) for rank in givers], [RankMemory(rank) for rank in takers]
    for source in sources:
        source.fill(giver_blocks, prompt.tokens)
    sent = 0
    for end in prompt.ends:
        last = end if end == prompt.tokens else end // givers[0].block_tokens * givers[0].block_tokens
        for share in shares:
            giver, taker = sources[share.giver_rank], targets[share.taker_rank]
            moves = make(
                giver.rank,
                taker.rank,
                share,
                giver_blocks,
                taker_blocks,
                first_token=sent,
                last_token=last,
                taker_first_token=prompt.cached,
            )
            taker.receive(giver, moves)
        sent = last
    for target in targets:
        target.assert_received(taker_blocks, prompt.cached, prompt.tokens)


STAGES_AND_BLOCKS = list(product((1, 2), BLOCK_SIZES, BLOCK_SIZES))
"""Giver's stages, its block size, the taker's."""
MODELS = list(product(SIZES, SIZES, SIZES))
"""Giver's ranks of a stage, the taker's, KV heads."""


def hand_over_all(giver_tp: int, taker_tp: int, heads: int, cases: Sequence[tuple[int, int, int]]) -> None:
    for pp, giver_tokens, taker_tokens in cases:
        rng = Random(f"{giver_tp} {taker_tp} {heads} {pp} {giver_tokens} {taker_tokens}")
        givers = ranks(giver_tp, pp, heads, giver_tokens, num_blocks=160 // giver_tokens + 3)
        takers = ranks(taker_tp, 1, heads, taker_tokens, num_blocks=160 // taker_tokens + 3)
        hand_over(givers, takers, random_prompt(rng, taker_tokens, 140), rng)


@pytest.mark.parametrize(("giver_tp", "taker_tp", "heads"), MODELS)
def test_every_byte_once_from_the_right_place(giver_tp: int, taker_tp: int, heads: int) -> None:
    """A fifth of all pairings for each model; every pairing with a fifth of the models."""
    part = MODELS.index((giver_tp, taker_tp, heads)) % 5
    hand_over_all(giver_tp, taker_tp, heads, STAGES_AND_BLOCKS[part::5])


@pytest.mark.slow
@pytest.mark.parametrize(("giver_tp", "taker_tp", "heads"), MODELS)
def test_every_byte_once_in_every_pairing(giver_tp: int, taker_tp: int, heads: int) -> None:
    hand_over_all(giver_tp, taker_tp, heads, STAGES_AND_BLOCKS)


@pytest.mark.parametrize(("giver_pp", "taker_pp"), list(product((1, 2, 3), (1, 2, 3))))
def test_stages_on_both_sides(giver_pp: int, taker_pp: int) -> None:
    rng = Random(giver_pp * 10 + taker_pp)
    for tp, giver_tokens, taker_tokens in ((1, 16, 16), (2, 16, 16), (1, 16, 32), (2, 32, 8)):
        givers, takers = ranks(tp, giver_pp, 4, giver_tokens), ranks(2, taker_pp, 4, taker_tokens)
        hand_over(givers, takers, random_prompt(rng, taker_tokens, 140), rng)


@pytest.mark.parametrize(("giver_tokens", "taker_tokens"), list(product(BLOCK_SIZES, BLOCK_SIZES)))
def test_prompts_around_the_ends_of_blocks(giver_tokens: int, taker_tokens: int) -> None:
    rng = Random(0)
    givers, takers = ranks(2, 1, 2, giver_tokens), ranks(1, 1, 2, taker_tokens)
    for tokens in (1, 7, 8, 9, 64, 65, 128, 129):
        for cached in {0, (tokens - 1) // taker_tokens * taker_tokens, tokens}:
            hand_over(givers, takers, Prompt(tokens=tokens, cached=cached, ends=(tokens,)), rng)
            hand_over(givers, takers, Prompt(tokens=tokens, cached=cached, ends=(tokens // 2, tokens)), rng)


def test_a_range_may_end_inside_a_block() -> None:
    """Not what push does: such a block goes over again, and its right bytes last."""
    rank = ranks(1, 1, 2, 16)[0]
    (share,) = map_ranks([rank], [rank])
    for ends in ((5, 40), (16, 20, 23, 40), (39, 40)):
        source, target = RankMemory(rank), RankMemory(rank)
        for first, last in zip((0, *ends), ends, strict=False):
            source.fill([7, 2, 3], last)
            target.receive(
                source, kv_moves(rank, rank, share, [7, 2, 3], [4, 5, 0], first_token=first, last_token=last)
            )
        target.writes = np.minimum(target.writes, 1)
        target.assert_received([4, 5, 0], 0, 40)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_geometries(data: st.DataObject) -> None:
    def side(name: str) -> list[RankGeometry]:
        tp, pp = data.draw(st.sampled_from(SIZES), f"{name} tp"), data.draw(st.integers(1, 3), f"{name} pp")
        tokens = data.draw(st.sampled_from((1, 2, 4, 12, 24)), f"{name} block")
        shape = {"head_dim": head_dim, "dtype_bytes": dtype_bytes}
        base = data.draw(st.integers(0, 2**47), f"{name} base")
        return [
            replace(rank, base_address=base + number * 2**30, **shape)
            for number, rank in enumerate(ranks(tp, pp, heads, tokens, num_blocks=100))
        ]

    heads = data.draw(st.sampled_from(SIZES), "heads")
    head_dim, dtype_bytes = data.draw(st.integers(1, 5), "head_dim"), data.draw(st.sampled_from((1, 2, 4)), "dtype")
    givers, takers = side("giver"), side("taker")
    rng = Random(data.draw(st.integers(0, 2**32), "seed"))
    hand_over(givers, takers, random_prompt(rng, takers[0].block_tokens, 60), rng)


# What would have to go wrong is seen by the checks above.


def from_the_front(*args: object, **tokens: int) -> Moves:
    """Trims the end of the giver's list where the taker has a prefix: the first tokens instead of the last."""
    cached = tokens["taker_first_token"]
    shifted = {name: max(tokens[name] - cached, 0) for name in ("first_token", "last_token")}
    return kv_moves(*args, **shifted, taker_first_token=0)  # type: ignore[arg-type]


def from_the_next_token(giver: RankGeometry, *args: object, **tokens: int) -> Moves:
    moves = kv_moves(giver, *args, **tokens)  # type: ignore[arg-type]
    return np.add(moves, [giver.token_bytes, 0, 0])


def values_from_keys(giver: RankGeometry, taker: RankGeometry, *args: object, **tokens: int) -> Moves:
    """K goes to V's place and V to K's, where planes move one by one."""
    moves = kv_moves(giver, taker, *args, **tokens)  # type: ignore[arg-type]
    plane = taker.block_tokens * taker.token_bytes
    offset = moves[:, 1] - taker.base_address
    moves[:, 1] += np.where(offset // plane % 2, -plane, plane)
    return moves


def one_short(*args: object, **tokens: int) -> Moves:
    return kv_moves(*args, **{**tokens, "last_token": tokens["last_token"] - 1})  # type: ignore[arg-type]


def one_twice(*args: object, **tokens: int) -> Moves:
    moves = kv_moves(*args, **tokens)  # type: ignore[arg-type]
    return np.concatenate((moves, moves[:1]))


def a_byte_too_long(*args: object, **tokens: int) -> Moves:
    return np.add(kv_moves(*args, **tokens), [0, 0, 1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (from_the_front, "wrong place"),
        (from_the_next_token, "wrong place"),
        (values_from_keys, "wrong place"),
        (one_short, "wrong place"),
        (one_twice, "exactly once"),
        (a_byte_too_long, "exactly once|wrong place"),
    ],
)
def test_the_check_sees_wrong_moves(make: MoveMaker, message: str) -> None:
    givers, takers = ranks(2, 1, 4, 16), ranks(1, 1, 4, 8)
    prompt = Prompt(tokens=100, cached=48, ends=(100,))
    hand_over(givers, takers, prompt, Random(1))
    with pytest.raises(AssertionError, match=message):
        hand_over(givers, takers, prompt, Random(1), make=make)


def other_heads(shares: tuple[Share, ...]) -> list[Share]:
    return [replace(share, giver_rank=1 - share.giver_rank) for share in shares]


@pytest.mark.parametrize(
    ("shares_of", "message"),
    [
        (lambda shares: shares[1:], "wrong place"),
        (lambda shares: (*shares, shares[0]), "exactly once"),
        (other_heads, "wrong place|outside the pool"),
    ],
)
def test_the_check_sees_wrong_shares(shares_of: Callable[[tuple[Share, ...]], Sequence[Share]], message: str) -> None:
    givers, takers = ranks(2, 1, 4), ranks(4, 1, 4)
    prompt = Prompt(tokens=100, cached=48, ends=(100,))
    hand_over(givers, takers, prompt, Random(2))
    with pytest.raises(AssertionError, match=message):
        hand_over(givers, takers, prompt, Random(2), shares_of=shares_of)


def test_the_check_sees_a_foreign_block() -> None:
    rank = ranks(1, 1, 1)[0]
    source, target = RankMemory(rank), RankMemory(rank)
    source.fill([3, 4], 32)
    share = map_ranks([rank], [rank])[0]
    target.receive(source, kv_moves(rank, rank, share, [3, 4], [7, 9], first_token=0, last_token=32))
    target.assert_received([7, 9], 0, 32)
    with pytest.raises(AssertionError, match="outside the list"):
        target.assert_received([7], 0, 16)


# Descriptors: what the layout is made for.

QWEN = RankGeometry(
    base_address=1 << 40,
    num_blocks=1000,
    block_tokens=64,
    first_head=0,
    num_heads=8,
    first_layer=0,
    num_layers=28,
    head_dim=128,
    dtype_bytes=2,
)
BLOCK_BYTES = 7 << 20
"""Of Qwen3-0.6B: 28 layers x K and V x 8 heads x 64 tokens x 128 elements x 2 bytes."""
SCATTERED = list(range(0, 500, 2))
"""250 blocks without neighbours."""


def moves_between(
    giver: RankGeometry, taker: RankGeometry, giver_blocks: list[int], taker_blocks: list[int], tokens: range
) -> Moves:
    (share,) = map_ranks([giver], [taker])
    return kv_moves(giver, taker, share, giver_blocks, taker_blocks, first_token=tokens.start, last_token=tokens.stop)


def test_equal_ranks_take_one_descriptor_a_block() -> None:
    moves = moves_between(QWEN, QWEN, SCATTERED, list(range(300, 550)), range(16_000))
    assert moves.dtype == np.int64 and moves.shape == (250, 3)
    assert (moves[:, 2] == BLOCK_BYTES).all()
    assert num_bytes(moves) == 16_000 * 114_688


def test_neighbours_on_both_sides_take_one_descriptor() -> None:
    moves = moves_between(QWEN, QWEN, list(range(250)), list(range(300, 550)), range(16_000))
    assert moves.tolist() == [[1 << 40, (1 << 40) + 300 * BLOCK_BYTES, 250 * BLOCK_BYTES]]


def test_neighbours_in_falling_order_merge_too() -> None:
    moves = moves_between(QWEN, QWEN, list(range(250))[::-1], list(range(300, 550))[::-1], range(16_000))
    assert moves.tolist() == [[1 << 40, (1 << 40) + 300 * BLOCK_BYTES, 250 * BLOCK_BYTES]]


def test_opposite_orders_do_not_merge() -> None:
    assert len(moves_between(QWEN, QWEN, [1, 2, 3], [9, 8, 7], range(192))) == 3


def test_runs_on_both_sides_merge_run_by_run() -> None:
    # Giver 4 5 6 | 20 21, taker 1 2 | 8 9 10: cuts after the second (taker) and the third block (giver).
    moves = moves_between(QWEN, QWEN, [4, 5, 6, 20, 21], [1, 2, 8, 9, 10], range(320))
    assert (moves[:, 2] // BLOCK_BYTES).tolist() == [2, 1, 2]


def test_a_last_partial_block_moves_whole() -> None:
    moves = moves_between(QWEN, QWEN, [5, 3], [1, 7], range(65))
    assert moves[:, 2].tolist() == [BLOCK_BYTES, BLOCK_BYTES]


def test_a_range_of_heads_takes_one_descriptor_a_block() -> None:
    half = replace(QWEN, first_head=4, num_heads=4)
    for giver, taker in ((QWEN, half), (half, QWEN)):
        (share,) = map_ranks([half], [half])
        moves = kv_moves(giver, taker, share, SCATTERED, SCATTERED, first_token=0, last_token=15_999)
        assert moves.shape == (250, 3) and (moves[:, 2] == BLOCK_BYTES // 2).all()


def test_a_range_of_layers_takes_one_descriptor_a_head_and_block() -> None:
    stage = replace(QWEN, first_layer=14, num_layers=14)
    (share,) = map_ranks([stage], [stage])
    moves = kv_moves(stage, QWEN, share, [5, 6], [1, 2], first_token=0, last_token=128)
    assert moves.shape == (2 * 8, 3) and (moves[:, 2] == BLOCK_BYTES // 8 // 2).all()


def test_other_block_sizes_take_one_descriptor_a_plane_and_smaller_block() -> None:
    small = replace(QWEN, block_tokens=16, num_blocks=4000)
    moves = moves_between(QWEN, small, [5, 9], [7, 3, 0, 11, 40, 30, 20, 10], range(128))
    assert len(moves) == 8 * 8 * 28 * 2
    assert (moves[:, 2] == 16 * 256).all()


def test_other_block_sizes_move_no_byte_too_many() -> None:
    small = replace(QWEN, block_tokens=16, num_blocks=4000)
    assert num_bytes(moves_between(QWEN, small, [5], [7, 3], range(17))) == 17 * 114_688


def test_a_negative_first_token_is_refused_with_nothing_to_move() -> None:
    (share,) = map_ranks([QWEN], [QWEN])
    with pytest.raises(BlocksError, match="taker blocks from token -64 on"):
        kv_moves(QWEN, QWEN, share, [1], [], first_token=64, last_token=64, taker_first_token=-64)


def test_nothing_to_move() -> None:
    (share,) = map_ranks([QWEN], [QWEN])
    for first, last, cached, blocks in ((0, 0, 0, []), (64, 64, 0, [2]), (0, 64, 64, []), (0, 70, 70, [])):
        moves = kv_moves(
            QWEN, QWEN, share, [1, 2], blocks, first_token=first, last_token=last, taker_first_token=cached
        )
        assert moves.shape == (0, 3) and num_bytes(moves) == 0


@pytest.mark.parametrize(
    ("giver_blocks", "taker_blocks", "cached", "message"),
    [
        ([1], [1, 2], 0, "1 giver blocks of 64 tokens from token 0 on do not reach 65"),
        ([1, 2], [1], 0, "1 taker blocks of 64 tokens from token 0 on do not reach 65"),
        ([1, 2], [], 64, "0 taker blocks of 64 tokens from token 64 on do not reach 65"),
        ([1, 1000], [1, 2], 0, "giver blocks 1 to 1000 are not all within its 1000 blocks"),
        ([1, 2], [-1, 2], 0, "taker blocks -1 to 2 are not all within its 1000 blocks"),
        ([1, 2], [2**63, 2], 0, "taker block ids beyond 64 bits"),
        ([1, 2], [1, 2], 32, "taker blocks from token 32 on: not at a block of 64 tokens"),
        ([1, 2], [1, 2, 3], -64, "taker blocks from token -64 on"),
    ],
)
def test_lists_that_cannot_be_right(
    giver_blocks: list[int], taker_blocks: list[int], cached: int, message: str
) -> None:
    (share,) = map_ranks([QWEN], [QWEN])
    with pytest.raises(BlocksError, match=message):
        kv_moves(QWEN, QWEN, share, giver_blocks, taker_blocks, first_token=0, last_token=65, taker_first_token=cached)
