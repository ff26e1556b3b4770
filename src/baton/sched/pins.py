"""Blocks that a transfer owns beside the sequences: taken when it is told of them, given back when it is settled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count

from baton.cache.pool import BlockPool


class Pins:
    """A pin adds one owner to each of its blocks, whatever becomes of the sequence. Nothing else keeps them or frees
    them: what a transfer may touch is what is pinned."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._numbers = count()
        self._held: dict[int, tuple[int, ...]] = {}
        self._ending: set[int] = set()
        self._num_blocks: int | None = 0  # None: to be counted anew

    def pin(self, blocks: Iterable[int]) -> int:
        """Hold owned blocks for a transfer. Returns the pin's number, never used before."""
        number, blocks = next(self._numbers), tuple(blocks)
        self._pool.retain(blocks)
        self._held[number] = blocks
        self._num_blocks = None
        return number

    def withdraw(self, pin: int) -> None:
        """Nothing more will be posted from it: its blocks come free as soon as what is posted has drained."""
        assert pin in self._held, f"pin {pin} is not held"
        self._ending.add(pin)

    def settle(self, pin: int) -> None:
        """The transfer lets go of its blocks. Exactly once for each pin."""
        assert pin in self._held, f"pin {pin} is settled twice, or was never made"
        self._ending.discard(pin)
        self._num_blocks = None
        self._pool.release(reversed(self._held.pop(pin)))

    @property
    def num_blocks(self) -> int:
        """Blocks that some transfer owns. Asked for at every step, and counted only when that has changed."""
        if self._num_blocks is None:
            self._num_blocks = len(set(self.blocks()))
        return self._num_blocks

    @property
    def num_soon_free(self) -> int:
        """Blocks that nobody but withdrawn pins holds."""
        owners = Counter(block for pin in self._ending for block in self._held[pin])
        return sum(self._pool.refs(block) == number for block, number in owners.items())

    def blocks(self) -> Iterator[int]:
        """Every block of every pin, once per reference."""
        for blocks in self._held.values():
            yield from blocks
