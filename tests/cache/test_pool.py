"""States of a block, order of reuse, and the fence rule."""

from random import Random

import pytest

from baton.cache.pool import BlockPool


def take(pool: BlockPool, count: int, after: int | None = None) -> list[int]:
    blocks = pool.allocate(count, after)
    assert blocks is not None
    return blocks


def test_a_fresh_pool_hands_out_one_run() -> None:
    pool = BlockPool(8)
    assert take(pool, 5) == [0, 1, 2, 3, 4]
    assert (pool.num_free, pool.num_used) == (3, 5)
    pool.check()


def test_too_many_is_none_and_takes_nothing() -> None:
    pool = BlockPool(4)
    take(pool, 3)
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    assert pool.allocate(0) == []


def test_a_table_grows_next_to_its_last_block() -> None:
    pool = BlockPool(8)
    take(pool, 6)
    pool.release([0, 3, 4])
    assert take(pool, 2, after=2) == [3, 4]


def test_clean_blocks_are_reused_oldest_first() -> None:
    pool = BlockPool(6)
    take(pool, 6)
    pool.release([4])
    pool.release([1])
    assert take(pool, 2) == [4, 1]


def test_cached_blocks_are_evicted_last_and_oldest_first() -> None:
    evicted: list[int] = []
    pool = BlockPool(4, on_evict=evicted.append)
    blocks = take(pool, 4)
    for block in (2, 0, 3):
        pool.mark_cached(block)
    pool.release([2, 0, 3, 1])
    assert pool.num_cached_free == 3
    assert take(pool, 1) == [1]
    assert evicted == []
    assert take(pool, 2) == [0, 2]  # ascending, for the sake of neighbours
    assert evicted == [2, 0]
    assert blocks == [0, 1, 2, 3]
    pool.check()


def test_a_hit_saves_a_cached_block_from_eviction() -> None:
    pool = BlockPool(2)
    take(pool, 2)
    pool.mark_cached(0)
    pool.mark_cached(1)
    pool.release([0, 1])
    pool.retain([0])
    assert take(pool, 1) == [1]
    assert pool.allocate(1) is None
    pool.check()


def test_a_shared_block_is_free_after_its_last_owner() -> None:
    pool = BlockPool(1)
    take(pool, 1)
    pool.retain([0])
    pool.release([0])
    assert pool.num_free == 0
    pool.release([0])
    assert pool.num_free == 1


def test_fence_a_block_of_a_running_step_is_quarantined_until_it_completes() -> None:
    pool = BlockPool(3)
    take(pool, 3)
    pool.touch([0, 1], 7)
    pool.touch([0], 8)
    pool.settle(6)
    pool.release([0, 1, 2])
    assert (pool.num_free, pool.num_quarantined, pool.num_used) == (1, 2, 2)
    assert pool.allocate(2) is None
    pool.check()
    assert pool.settle(7) == [1]
    assert (pool.num_free, pool.num_quarantined) == (2, 1)
    assert pool.settle(8) == [0]
    assert pool.num_free == 3
    pool.check()


def test_fence_counts_the_last_step_of_any_owner() -> None:
    pool = BlockPool(1)
    take(pool, 1)
    pool.retain([0])
    pool.touch([0], 9)
    pool.release([0])  # the owner whose step 9 still runs
    pool.touch([0], 4)  # the other one was last used earlier
    pool.settle(4)
    pool.release([0])
    assert (pool.num_free, pool.num_quarantined) == (0, 1)
    pool.settle(9)
    assert pool.num_free == 1


def test_a_released_block_of_a_completed_step_is_free_at_once() -> None:
    pool = BlockPool(1)
    take(pool, 1)
    pool.touch([0], 3)
    pool.settle(3)
    pool.release([0])
    assert pool.num_free == 1


def test_a_hit_may_take_a_block_out_of_quarantine() -> None:
    pool = BlockPool(2)
    take(pool, 2)
    pool.mark_cached(0)
    pool.touch([0, 1], 5)
    pool.release([0, 1])
    pool.retain([0])
    assert pool.num_quarantined == 1
    pool.check()
    assert pool.settle(5) == [1]
    pool.touch([0], 6)
    pool.release([0])
    assert pool.num_quarantined == 1
    pool.check()


def test_a_quarantined_block_without_content_cannot_be_shared() -> None:
    pool = BlockPool(1)
    take(pool, 1)
    pool.touch([0], 5)
    pool.release([0])
    with pytest.raises(AssertionError, match="no content"):
        pool.retain([0])


@pytest.mark.parametrize("block", [0, -1, 3])
def test_releasing_what_nobody_owns_is_our_bug(block: int) -> None:
    pool = BlockPool(3)
    with pytest.raises(AssertionError):
        pool.release([block])


def test_double_free_is_our_bug() -> None:
    pool = BlockPool(3)
    take(pool, 1)
    pool.release([0])
    with pytest.raises(AssertionError, match="double free of block 0"):
        pool.release([0])


def test_double_free_of_a_quarantined_block_is_our_bug() -> None:
    pool = BlockPool(3)
    take(pool, 1)
    pool.touch([0], 1)
    pool.release([0])
    with pytest.raises(AssertionError, match="double free of block 0"):
        pool.release([0])


def test_steps_complete_in_order() -> None:
    pool = BlockPool(1)
    pool.settle(4)
    with pytest.raises(AssertionError):
        pool.settle(3)


def test_check_sees_a_lost_block_and_a_block_in_two_states() -> None:
    lost = BlockPool(3)
    del lost._clean[1]
    with pytest.raises(AssertionError, match="!= 3"):
        lost.check()
    doubled = BlockPool(3)
    doubled._refs[1] = 1
    with pytest.raises(AssertionError, match="!= 3"):
        doubled.check()


def test_random_use_keeps_the_books() -> None:
    rng = Random(1)
    pool = BlockPool(12)
    owned: list[int] = []
    for step in range(3000):
        action = rng.randrange(4)
        if action == 0 and (new := pool.allocate(rng.randint(1, 4))) is not None:
            assert not set(new) & set(owned)
            owned += new
        elif action == 1 and owned:
            block = owned.pop(rng.randrange(len(owned)))
            pool.release([block])
        elif action == 2 and owned:
            pool.touch(rng.sample(owned, 1), step)
        elif action == 3:
            pool.settle(max(pool.completed_step, step - rng.randint(0, 5)))
        assert pool.num_used == len(owned) + pool.num_quarantined
        pool.check()
