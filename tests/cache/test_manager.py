"""Tables, hits, forks and releases over one pool."""

import pytest

from baton.cache.manager import CacheManager
from baton.cache.prefix import PrefixChain
from baton.core.config import CacheConfig

PROMPT = list(range(10))


def manager(num_blocks: int = 8, *, caching: bool = True) -> CacheManager:
    return CacheManager(CacheConfig(block_tokens=4, num_blocks=num_blocks, enable_prefix_caching=caching))


def open_sequence(cache: CacheManager, key: int, tokens: list[int], salt: str = "", request_key: int = 0) -> list[int]:
    """Admit a sequence; returns its hit."""
    chain = cache.chain(salt, request_key)
    hit = cache.find_hit(chain, tokens)
    assert cache.fits(hit, len(tokens))
    cache.begin(key, chain, hit)
    assert cache.grow(key, len(tokens)) is not None
    return hit


def run_once(cache: CacheManager, key: int, tokens: list[int], salt: str = "", request_key: int = 0) -> None:
    """Admit, compute, publish and release a sequence."""
    open_sequence(cache, key, tokens, salt, request_key)
    cache.publish(key, tokens, len(tokens))
    cache.release(key)


def test_grow_covers_the_tokens_and_no_more() -> None:
    cache = manager()
    cache.begin(1, cache.chain("", 0), [])
    assert cache.grow(1, 5) == (0, 1)
    assert cache.grow(1, 8) == ()
    assert cache.missing(1, 9) == 1
    assert cache.grow(1, 9) == (2,)
    assert cache.table(1) == (0, 1, 2)
    cache.check()


def test_grow_is_all_or_nothing() -> None:
    cache = manager(num_blocks=2)
    cache.begin(1, cache.chain("", 0), [])
    assert cache.grow(1, 12) is None
    assert cache.table(1) == ()
    assert cache.usage.free == 2


def test_full_blocks_are_found_after_release() -> None:
    cache = manager()
    run_once(cache, 1, PROMPT)
    assert cache.find_hit(cache.chain("", 9), PROMPT) == [0, 1]
    assert cache.find_hit(cache.chain("", 9), [*PROMPT[:6], 99, 99, 99]) == [0]
    usage = cache.usage
    assert (usage.used, usage.free, usage.cached_free, usage.total) == (0, 8, 2, 8)


def test_a_hit_leaves_a_token_to_compute() -> None:
    cache = manager()
    run_once(cache, 1, PROMPT)
    assert cache.find_hit(cache.chain("", 9), PROMPT[:8]) == [0]
    assert cache.find_hit(cache.chain("", 9), PROMPT[:9]) == [0, 1]
    assert cache.find_hit(cache.chain("", 9), PROMPT[:4]) == []


def test_only_computed_blocks_are_published() -> None:
    cache = manager()
    open_sequence(cache, 1, PROMPT)
    cache.publish(1, PROMPT, 7)
    assert cache.find_hit(cache.chain("", 9), PROMPT) == [0]
    cache.publish(1, PROMPT, 8)
    assert cache.find_hit(cache.chain("", 9), PROMPT) == [0, 1]


def test_salts_and_fingerprints_do_not_meet() -> None:
    cache = manager()
    run_once(cache, 1, PROMPT, salt="a")
    assert cache.find_hit(cache.chain("a", 9), PROMPT) != []
    assert cache.find_hit(cache.chain("b", 9), PROMPT) == []
    other = CacheManager(CacheConfig(block_tokens=4, num_blocks=8, fingerprint="other"))
    assert other.chain("", 0).extend(PROMPT, 1) != cache.chain("", 0).extend(PROMPT, 1)


def test_without_prefix_caching_blocks_are_shared_inside_one_request_only() -> None:
    cache = manager(caching=False)
    run_once(cache, 1, PROMPT, request_key=5)
    assert cache.find_hit(cache.chain("", 6), PROMPT) == []
    assert cache.find_hit(cache.chain("", 5), PROMPT) == [0, 1]


def test_a_hit_on_free_blocks_uses_them_up() -> None:
    cache = manager(num_blocks=3)
    run_once(cache, 1, PROMPT)
    hit = cache.find_hit(cache.chain("", 9), PROMPT)
    assert cache.fits(hit, 12)
    assert not cache.fits(hit, 13)  # two hits and two new blocks, of three


def test_a_hit_on_blocks_in_use_costs_nothing() -> None:
    cache = manager(num_blocks=4)
    open_sequence(cache, 1, PROMPT)
    cache.publish(1, PROMPT, 10)
    hit = open_sequence(cache, 2, PROMPT)
    assert hit == [0, 1]
    assert cache.usage.free == 0
    cache.check()
    cache.release(1)
    assert cache.usage.free == 1
    cache.release(2)
    cache.check()


def test_equal_content_is_published_once() -> None:
    cache = manager()
    for key in (1, 2):
        open_sequence(cache, key, PROMPT)
    for key in (1, 2):
        cache.publish(key, PROMPT, 10)
    cache.check()
    assert cache.find_hit(cache.chain("", 9), PROMPT) == list(cache.table(1)[:2])
    cache.release(1)
    cache.release(2)
    assert cache.usage.cached_free == 2


def test_the_tail_of_a_prefix_is_evicted_before_its_head() -> None:
    cache = manager(num_blocks=4)
    run_once(cache, 1, PROMPT)
    cache.begin(2, cache.chain("x", 9), [])
    assert cache.grow(2, 12) is not None
    assert cache.find_hit(cache.chain("", 9), PROMPT) == [0]


def test_a_fork_shares_full_blocks_and_copies_the_tail() -> None:
    cache = manager()
    open_sequence(cache, 1, PROMPT)
    table, copies = cache.fork(1, 2, cache.chain("", 0), 10) or ((), ())
    assert table == (0, 1, 3)
    assert copies == ((2, 3),)
    assert cache.table(2) == table
    cache.check()
    cache.release(1)
    assert cache.usage.used == 3
    cache.check()


def test_a_fork_at_a_block_edge_copies_nothing() -> None:
    cache = manager(num_blocks=2)
    open_sequence(cache, 1, PROMPT[:8])
    assert cache.fork(1, 2, cache.chain("", 0), 8) == ((0, 1), ())


def test_a_fork_without_a_block_for_the_tail_takes_nothing() -> None:
    cache = manager(num_blocks=3)
    open_sequence(cache, 1, PROMPT)
    assert cache.fork(1, 2, cache.chain("", 0), 10) is None
    assert not cache.holds(2)
    cache.check()


def test_a_fork_publishes_what_its_parent_did_not() -> None:
    cache = manager()
    open_sequence(cache, 1, PROMPT)
    assert cache.fork(1, 2, cache.chain("", 0), 10) is not None
    cache.release(1)
    cache.publish(2, PROMPT, 10)
    assert cache.find_hit(cache.chain("", 9), PROMPT) == [0, 1]


def test_release_obeys_the_fence() -> None:
    cache = manager(num_blocks=3)
    open_sequence(cache, 1, PROMPT)
    cache.touch(1, 4)
    cache.settle(3)
    cache.release(1)
    usage = cache.usage
    assert (usage.used, usage.quarantined, usage.free) == (3, 3, 0)
    cache.settle(4)
    assert cache.usage.free == 3


def test_the_fence_of_a_shared_block_is_that_of_its_last_user() -> None:
    cache = manager()
    open_sequence(cache, 1, PROMPT)
    cache.publish(1, PROMPT, 10)
    open_sequence(cache, 2, PROMPT)
    cache.touch(1, 6)
    cache.touch(2, 5)
    cache.settle(5)
    cache.release(1)
    cache.release(2)
    assert cache.usage.quarantined == 3  # both shared blocks and the tail of sequence 1
    cache.check()


def test_check_sees_a_reference_without_an_owner() -> None:
    cache = manager()
    blocks = cache.pool.allocate(1)
    assert blocks == [0]
    with pytest.raises(AssertionError, match="block 0 has 1 references and 0 owners"):
        cache.check()
    cache.check(held=blocks)


def test_check_sees_a_publication_that_the_pool_does_not_know() -> None:
    cache = manager()
    open_sequence(cache, 1, PROMPT)
    cache._index.add(PrefixChain(b"", 4).extend(PROMPT, 1)[0], 0)
    with pytest.raises(AssertionError, match="disagree"):
        cache.check()


def test_a_key_opens_one_table() -> None:
    cache = manager()
    open_sequence(cache, 1, PROMPT)
    with pytest.raises(AssertionError, match="already holds"):
        cache.begin(1, cache.chain("", 0), [])


def test_a_whole_hit_leaves_nothing_to_compute() -> None:
    cache = manager()
    run_once(cache, 1, PROMPT[:8])
    assert cache.find_hit(cache.chain("", 9), PROMPT[:8]) == [0]
    assert cache.find_hit(cache.chain("", 9), PROMPT[:8], whole=True) == [0, 1]
    assert cache.find_hit(cache.chain("", 9), PROMPT[:7], whole=True) == [0]


def test_spare_blocks_count_against_what_fits() -> None:
    cache = manager(num_blocks=4)
    assert cache.fits([], 12, spare=1)
    assert not cache.fits([], 12, spare=2)


def test_a_table_changes_hands_with_its_digests() -> None:
    cache = manager()
    open_sequence(cache, 1, PROMPT)
    chain = cache.chain("", 0)
    cache.hand_over(1, 2, chain)
    assert not cache.holds(1) and cache.table(2) == (0, 1, 2)
    cache.publish(2, PROMPT, 10)
    assert cache.find_hit(cache.chain("", 0), PROMPT) == [0, 1]
    cache.release(2)
    cache.check()
