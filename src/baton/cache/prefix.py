"""Which block holds the KV of which prefix: chained digests and the index from digest to block."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

DIGEST_BYTES = 16


def seed_digest(*parts: str) -> bytes:
    """Digest that starts a chain; equal only for equal parts (each is hashed with its length)."""
    state = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        data = part.encode()
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.digest()


class PrefixChain:
    """Digests of the full blocks of one growing token sequence; each covers all tokens before it.

    digest[i] = blake2b-128(digest[i - 1] + tokens of block i as int64), digest[-1] = seed.
    """

    __slots__ = ("_block_tokens", "_digests", "_seed")

    def __init__(self, seed: bytes, block_tokens: int) -> None:
        self._seed = seed
        self._block_tokens = block_tokens
        self._digests: list[bytes] = []

    def extend(self, tokens: Sequence[int], num_blocks: int) -> list[bytes]:
        """Digests of at least the first `num_blocks` blocks of tokens; only new blocks are hashed."""
        size = self._block_tokens
        assert num_blocks * size <= len(tokens), (num_blocks, size, len(tokens))
        fresh = tokens[len(self._digests) * size : num_blocks * size]
        data = struct.pack(f"<{len(fresh)}q", *fresh)
        digest = self._digests[-1] if self._digests else self._seed
        for start in range(0, len(data), 8 * size):
            digest = blake2b(digest + data[start : start + 8 * size], digest_size=DIGEST_BYTES).digest()
            self._digests.append(digest)
        return self._digests

    def fork(self) -> PrefixChain:
        """A chain with the same past and its own future."""
        child = PrefixChain(self._seed, self._block_tokens)
        child._digests = self._digests[:]
        return child


class PrefixIndex:
    """Digest <-> block, one to one."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def find(self, digest: bytes) -> int | None:
        """Block that holds this prefix's last block, or None."""
        return self._block_of.get(digest)

    def add(self, digest: bytes, block: int) -> bool:
        """Make a block findable. False if the same content already is (this block then stays private)."""
        if digest in self._block_of:
            return False
        assert block not in self._digest_of, f"block {block} is already published with other content"
        self._block_of[digest] = block
        self._digest_of[block] = digest
        return True

    def forget(self, block: int) -> None:
        """The block's content is given up."""
        del self._block_of[self._digest_of.pop(block)]

    def blocks(self) -> set[int]:
        """All findable blocks."""
        return set(self._digest_of)
