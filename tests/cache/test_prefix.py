"""Chained digests and the index."""

from hashlib import blake2b
from struct import pack

import pytest

from baton.cache.prefix import PrefixChain, PrefixIndex, seed_digest


def digests(seed: bytes, tokens: list[int], block_tokens: int = 2) -> list[bytes]:
    return PrefixChain(seed, block_tokens).extend(tokens, len(tokens) // block_tokens)


def test_a_digest_is_the_hash_of_its_parent_and_its_tokens() -> None:
    first = blake2b(b"seed" + pack("<2q", 5, 6), digest_size=16).digest()
    second = blake2b(first + pack("<2q", 7, 8), digest_size=16).digest()
    assert digests(b"seed", [5, 6, 7, 8, 9]) == [first, second]


def test_equal_blocks_after_different_prefixes_differ() -> None:
    a, b = digests(b"", [1, 2, 9, 9]), digests(b"", [1, 3, 9, 9])
    assert a[1] != b[1]


def test_a_long_prefix_extends_a_short_one() -> None:
    assert digests(b"", [1, 2, 3, 4, 5, 6])[:2] == digests(b"", [1, 2, 3, 4])


def test_seeds_separate_fingerprints_and_salts_without_running_together() -> None:
    seeds = {seed_digest("ab", "c"), seed_digest("a", "bc"), seed_digest("abc", ""), seed_digest("", "abc")}
    assert len(seeds) == 4


def test_extending_hashes_only_new_blocks() -> None:
    chain = PrefixChain(b"", 2)
    first = chain.extend([1, 2, 3], 1)[0]
    # Were block 0 hashed again, the changed tokens would show.
    assert chain.extend([0, 0, 3, 4], 2)[0] == first


def test_blocks_must_be_full() -> None:
    with pytest.raises(AssertionError):
        PrefixChain(b"", 4).extend([1, 2, 3], 1)


def test_a_fork_shares_the_past_only() -> None:
    chain = PrefixChain(b"", 2)
    chain.extend([1, 2], 1)
    child = chain.fork()
    assert child.extend([1, 2, 3, 4], 2)[0] == chain.extend([1, 2, 5, 6], 2)[0]
    assert child.extend([1, 2, 3, 4], 2)[1] != chain.extend([1, 2, 5, 6], 2)[1]


def test_the_index_is_one_to_one() -> None:
    index = PrefixIndex()
    assert index.add(b"a", 1)
    assert not index.add(b"a", 2)
    assert (index.find(b"a"), index.find(b"b"), len(index)) == (1, None, 1)
    with pytest.raises(AssertionError, match="already published"):
        index.add(b"b", 1)
    index.forget(1)
    assert index.find(b"a") is None
    assert index.blocks() == set()
