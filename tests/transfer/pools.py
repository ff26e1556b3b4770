"""Block pools over real memory, in which a free block is reused at once and every byte is known."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import cache

from baton.core.geometry import RankGeometry

MAX_TOKENS, MAX_HEADS, PLANES = 8, 2, 2

Owner = tuple[object, ...]


class Memory:
    """The blocks of one rank: one layer, one byte for each token, head and K|V."""

    def __init__(self, num_blocks: int, block_tokens: int, heads: range) -> None:
        self._buffer = (ctypes.c_ubyte * (num_blocks * len(heads) * PLANES * block_tokens))()
        self.bytes = memoryview(self._buffer).cast("B")
        self.geometry = RankGeometry(
            base_address=ctypes.addressof(self._buffer),
            num_blocks=num_blocks,
            block_tokens=block_tokens,
            first_head=heads.start,
            num_heads=len(heads),
            first_layer=0,
            num_layers=1,
            head_dim=1,
            dtype_bytes=1,
        )
        self.block_bytes = self.geometry.block_bytes

    def places(self, block: int, offset: int) -> list[tuple[int, int]]:
        """(index, plane of the model) of each byte of a block's token."""
        size, geometry = self.geometry.block_tokens, self.geometry
        start, first = block * self.block_bytes + offset, geometry.first_head * PLANES
        return [(start + plane * size, first + plane) for plane in range(geometry.num_heads * PLANES)]


@cache
def memory(name: str, num_blocks: int, block_tokens: int, heads: range) -> Memory:
    """The same addresses in every run, so that descriptors can be cached; a Pool fills it anew."""
    return Memory(num_blocks, block_tokens, heads)


def kv(transfer: int, token: int, plane: int) -> int:
    """A byte of KV: no two are alike, and none is a filling."""
    return 1 + (transfer * MAX_TOKENS + token) * PLANES * MAX_HEADS + plane


class Pool:
    """Blocks of one engine (all its ranks) by who owns them. A free one goes at once to a local owner, who fills it."""

    def __init__(self, ranks: Sequence[Memory]) -> None:
        self.ranks = ranks
        self.owners: list[set[Owner]] = [set() for _ in range(ranks[0].geometry.num_blocks)]
        self._size = ranks[0].block_bytes
        self._filled = [b""] * len(self.owners)
        self._fillings = 0
        for block in range(len(self.owners)):
            self._fill(block)

    def _fill(self, block: int) -> None:
        self._fillings += 1
        self._filled[block] = bytes((200 + self._fillings % 56,)) * self._size
        for rank in self.ranks:
            rank.bytes[block * self._size : (block + 1) * self._size] = self._filled[block]

    @property
    def free(self) -> list[int]:
        """Blocks that only the local owner has."""
        return [block for block, owners in enumerate(self.owners) if not owners]

    @property
    def is_free(self) -> bool:
        """Whether all are."""
        return not any(self.owners)

    def retain(self, blocks: Iterable[int], owner: Owner) -> None:
        """One more owner."""
        for block in blocks:
            self.owners[block].add(owner)

    def release(self, blocks: Iterable[int], owner: Owner) -> None:
        """One owner less; the last one's blocks are reused."""
        for block in blocks:
            owners = self.owners[block]
            if owner in owners:
                owners.remove(owner)
                if not owners:
                    self._fill(block)

    def is_pinned(self, block: int, transfer: int) -> bool:
        """Whether a pin of this transfer holds it."""
        return any(owner[:2] == ("pin", transfer) for owner in self.owners[block])

    def spoiled(self) -> int | None:
        """A reused block that is not as its owner left it."""
        size = self._size
        for block, owners in enumerate(self.owners):
            if not owners:
                for rank in self.ranks:
                    if rank.bytes[block * size : (block + 1) * size] != self._filled[block]:
                        return block
        return None

    def write(self, blocks: Sequence[int], transfer: int, tokens: range) -> None:
        """KV of these tokens of a prompt."""
        for rank in self.ranks:
            for token in tokens:
                block, offset = divmod(token, rank.geometry.block_tokens)
                for index, plane in rank.places(blocks[block], offset):
                    rank.bytes[index] = kv(transfer, token, plane)

    def holds(self, blocks: Sequence[int], first_token: int, transfer: int, tokens: range) -> bool:
        """Whether the KV of these tokens is there; blocks: of tokens from first_token on."""
        for rank in self.ranks:
            for token in tokens:
                block, offset = divmod(token - first_token, rank.geometry.block_tokens)
                for index, plane in rank.places(blocks[block], offset):
                    if rank.bytes[index] != kv(transfer, token, plane):
                        return False
        return True
