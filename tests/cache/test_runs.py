"""Blocks for a transfer come in few runs, also from a fragmented pool."""

from collections.abc import Iterable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.cache.pool import BlockPool
from baton.cache.runs import longest_runs


def choose(free: Iterable[int], count: int) -> list[int]:
    """Of these blocks, in a pool that is a little larger."""
    blocks = set(free)
    return longest_runs(bytes(block in blocks for block in range(max(blocks, default=0) + 3)), count)


def num_runs(blocks: list[int]) -> int:
    """Pieces of memory, when neighbours in the list that are neighbours in memory merge."""
    return len(blocks) and 1 + sum(b != a + 1 for a, b in pairwise(blocks))


@pytest.mark.parametrize(
    ("free", "count", "chosen"),
    [
        (range(8), 5, [0, 1, 2, 3, 4]),
        ([0, 1, 2, 5, 6, 9], 4, [0, 1, 2, 9]),  # the longest, then the shortest that is enough
        ([0, 1, 2, 5, 6, 9], 2, [5, 6]),  # a long run is not cut while a shorter one fits
        ([7, 3, 5], 2, [3, 5]),
        ([4], 3, [4]),
        ([1, 2], 0, []),
        ([], 2, []),
    ],
)
def test_choice(free: list[int], count: int, chosen: list[int]) -> None:
    assert choose(free, count) == chosen


@given(st.sets(st.integers(0, 40)), st.integers(0, 45))
def test_any_choice_is_made_of_what_is_free_once(free: set[int], count: int) -> None:
    chosen = choose(free, count)
    assert len(chosen) == len(set(chosen)) == min(count, len(free)) and set(chosen) <= free


@given(st.sets(st.integers(0, 40)), st.integers(1, 20))
def test_no_choice_has_fewer_runs(free: set[int], count: int) -> None:
    """The least number of runs: the longest ones, until their lengths are enough."""
    lengths = sorted((num for num in _lengths(sorted(free))), reverse=True)
    least = next((n for n in range(len(lengths) + 1) if sum(lengths[:n]) >= count), len(lengths))
    assert num_runs(sorted(choose(free, count))) == least


def _lengths(blocks: list[int]) -> list[int]:
    lengths: list[int] = []
    for place, block in enumerate(blocks):
        if place and block == blocks[place - 1] + 1:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def _fragmented(seed: int) -> BlockPool:
    """400 blocks, half of them freed in random order."""
    pool = BlockPool(400)
    blocks = pool.allocate(400)
    assert blocks is not None
    pool.release(Random(seed).sample(blocks, 200))
    return pool


@pytest.mark.parametrize("seed", range(5))
def test_a_fragmented_pool_gives_fewer_runs_than_reuse_by_age(seed: int) -> None:
    by_age, in_runs = _fragmented(seed).allocate(50), _fragmented(seed).allocate_runs(50)
    assert by_age is not None and in_runs is not None
    # Runs of free blocks at density 1/2 have mean length 2, the longest dozen of 100 at least 4.
    assert num_runs(in_runs) <= 13
    assert num_runs(by_age) >= 1.6 * num_runs(in_runs)


def test_cached_blocks_are_evicted_only_when_clean_ones_do_not_do() -> None:
    evicted: list[int] = []
    pool = BlockPool(6, on_evict=evicted.append)
    pool.allocate(6)
    for block in (0, 1):
        pool.mark_cached(block)
    pool.release([1, 0, 3, 5])
    assert pool.allocate_runs(5) is None
    assert pool.allocate_runs(3) == [3, 5, 1]
    assert evicted == [1]
    pool.check()


def test_who_gets_blocks_is_told_before_they_are_handed_out() -> None:
    pool = BlockPool(4)
    told: list[list[int]] = []
    pool.on_allocate = lambda blocks: told.append(list(blocks))
    assert [pool.allocate(2), pool.allocate_runs(1)] == told == [[0, 1], [2]]
    assert pool.allocate(2) is None and len(told) == 2
