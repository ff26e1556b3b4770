"""Both sides of a hand-off digest alike, whatever their blocks; one wrong byte, place or token shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from baton.core.geometry import RankGeometry
from baton.core.handoff import prompt_digest
from baton.transfer.digest import kv_digest
from baton.transfer.mapping import Share, map_ranks
from baton.transfer.moves import kv_moves
from tests.transfer.test_mapping import ranks

TOKENS, CACHED = 100, 64


@dataclass(frozen=True)
class Pool:
    """A rank's memory in real bytes, at the rank's addresses."""

    rank: RankGeometry
    memory: NDArray[np.uint8]

    def read(self, address: int, length: int) -> memoryview:
        offset = address - self.rank.base_address
        assert offset >= 0 and offset + length <= self.memory.size
        return memoryview(self.memory)[offset : offset + length]


def random_pool(rank: RankGeometry, seed: int) -> Pool:
    memory = np.random.default_rng(seed).integers(0, 256, rank.num_blocks * rank.block_bytes, np.uint8)
    return Pool(rank, memory)


@dataclass(frozen=True)
class Crossed:
    """A share of a hand-off that has landed."""

    share: Share
    giver: Pool
    taker: Pool
    giver_blocks: list[int]
    taker_blocks: list[int]
    cached: int = CACHED

    def given(self) -> bytes:
        return kv_digest(
            self.giver.read,
            self.giver.rank,
            self.share,
            self.giver_blocks,
            first_token=self.cached,
            last_token=TOKENS,
        )

    def taken(self) -> bytes:
        return kv_digest(
            self.taker.read,
            self.taker.rank,
            self.share,
            self.taker_blocks,
            first_token=self.cached,
            last_token=TOKENS,
            blocks_first_token=self.cached,
        )


def cross(share: Share, giver: Pool, taker: Pool, cached: int = CACHED) -> Crossed:
    rng = np.random.default_rng(0)
    giver_blocks = rng.permutation(giver.rank.num_blocks)[: -(-TOKENS // giver.rank.block_tokens)].tolist()
    count = -(-(TOKENS - cached) // taker.rank.block_tokens)
    taker_blocks = rng.permutation(taker.rank.num_blocks)[:count].tolist()
    moves = kv_moves(
        giver.rank,
        taker.rank,
        share,
        giver_blocks,
        taker_blocks,
        first_token=cached,
        last_token=TOKENS,
        taker_first_token=cached,
    )
    for source, target, length in moves.tolist():
        taker.read(target, length)[:] = giver.read(source, length)
    return Crossed(share, giver, taker, giver_blocks, taker_blocks, cached)


def crossed(giver_tokens: int = 16, taker_tokens: int = 16) -> Crossed:
    """Heads 2-3 of 4, layers 1-2 of 3: the giver is the last rank of 2 x 2, the taker holds all."""
    givers, takers = ranks(2, 2, 4, giver_tokens), ranks(1, 1, 4, taker_tokens)
    share = map_ranks(givers, takers)[-1]
    return cross(share, random_pool(givers[share.giver_rank], 1), random_pool(takers[0], 2))


@pytest.mark.parametrize(("giver_tokens", "taker_tokens"), list(product((8, 16, 32, 64), (8, 16, 32, 64))))
def test_both_sides_digest_alike(giver_tokens: int, taker_tokens: int) -> None:
    it = crossed(giver_tokens, taker_tokens)
    assert len(it.given()) == 16
    assert it.given() == it.taken()


@pytest.mark.parametrize(("giver_tp", "taker_tp", "heads"), [(1, 4, 4), (4, 1, 2), (8, 2, 1), (2, 8, 8)])
def test_every_share_digests_alike(giver_tp: int, taker_tp: int, heads: int) -> None:
    givers = [random_pool(rank, seed) for seed, rank in enumerate(ranks(giver_tp, 2, heads, 32))]
    takers = [random_pool(rank, 50 + seed) for seed, rank in enumerate(ranks(taker_tp, 1, heads, 16))]
    for share in map_ranks([pool.rank for pool in givers], [pool.rank for pool in takers]):
        it = cross(share, givers[share.giver_rank], takers[share.taker_rank])
        assert it.given() == it.taken()


def test_the_canonical_order() -> None:
    """Against the definition, over the pool as the array of the design: planes in order of head, layer, K|V."""
    it = crossed(16, 32)
    rank = it.giver.rank
    shape = (rank.num_blocks, rank.num_heads, rank.num_layers, 2, rank.block_tokens, rank.token_bytes)
    kv = it.giver.memory.reshape(shape)[it.giver_blocks]
    planes = [
        blake2b(kv[:, head, layer, pair].tobytes()[CACHED * 3 : TOKENS * 3], digest_size=16).digest()
        for head, layer, pair in product(range(2), range(2), range(2))
    ]
    assert it.given() == blake2b(b"".join(planes), digest_size=16).digest()


def test_bytes_outside_the_tokens_do_not_count() -> None:
    it = crossed()
    given, taken = it.given(), it.taken()
    rank = it.taker.rank
    kv = it.taker.memory.reshape(rank.num_blocks, rank.num_heads, rank.num_layers, 2, rank.block_tokens, -1)
    tail = it.taker_blocks[-1]  # tokens 96-111 of 100
    kv[tail, :, :, :, 4:] ^= 0xFF
    kv[tail, :2] ^= 0xFF  # heads 0-1 are another giver's
    kv[tail, :, :1] ^= 0xFF  # so is layer 0
    kv[np.setdiff1d(np.arange(rank.num_blocks), it.taker_blocks)] ^= 0xFF
    assert it.taken() == taken == given
    kv[tail, 2, 1, 0, 3, 0] ^= 0xFF
    assert it.taken() != given


def flip_a_bit(it: Crossed) -> None:
    rank = it.taker.rank
    address = rank.base_address + it.taker_blocks[0] * rank.block_bytes + rank.block_bytes - 1
    it.taker.read(address, 1)[0] ^= 1


def swap_blocks(it: Crossed) -> None:
    it.taker_blocks[0], it.taker_blocks[1] = it.taker_blocks[1], it.taker_blocks[0]


def swap_keys_and_values(it: Crossed) -> None:
    rank = it.taker.rank
    kv = it.taker.memory.reshape(rank.num_blocks, rank.num_heads, rank.num_layers, 2, -1)
    kv[:] = kv[:, :, :, ::-1].copy()


def another_block(it: Crossed) -> None:
    it.giver_blocks[-1] = next(b for b in range(it.giver.rank.num_blocks) if b not in it.giver_blocks)


@pytest.mark.parametrize("harm", [flip_a_bit, swap_blocks, swap_keys_and_values, another_block])
def test_harm_shows(harm: Callable[[Crossed], None]) -> None:
    it = crossed()
    assert it.given() == it.taken()
    harm(it)
    assert it.given() != it.taken()


def test_an_empty_range_digests_alike() -> None:
    givers, takers = ranks(1, 1, 2), ranks(1, 1, 2, 64)
    (share,) = map_ranks(givers, takers)
    it = cross(share, random_pool(givers[0], 1), random_pool(takers[0], 2), cached=TOKENS)
    assert it.taker_blocks == []
    assert it.given() == it.taken()


def test_a_list_that_ends_early_is_our_bug() -> None:
    it = crossed()
    it.taker_blocks.pop()
    with pytest.raises(AssertionError):
        it.taken()


def test_the_digest_of_a_prompt_is_of_its_tokens_alone() -> None:
    """BLAKE2b-128 over 4 bytes a token; order, values and length all count, how they are kept does not."""
    data = b"".join(token.to_bytes(4, "little") for token in (7, 0, 150_000))
    assert prompt_digest((7, 0, 150_000)) == blake2b(data, digest_size=16).digest()
    others = [(7, 0, 150_001), (0, 7, 150_000), (7, 0), (7, 0, 150_000, 0), (0, 7, 0, 150_000)]
    assert len({prompt_digest(each) for each in [*others, (7, 0, 150_000), [7, 0, 150_000]]}) == len(others) + 1
