"""Owners, order of reuse and the fence of all KV blocks. `release` is the only way to free a block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from baton.cache.runs import longest_runs


def _ignore(block: int) -> None:
    """Nobody wants to know about evictions."""


def _ignore_all(blocks: Sequence[int]) -> None:
    """Nobody wants to know who gets blocks."""


class BlockPool:
    """Blocks 0 .. num_blocks - 1, each in exactly one state.

    - referenced: one or more owners;
    - quarantined: no owner, but a step that uses it has not completed (counts as used);
    - cached-free: no owner, content still findable, reused oldest first after the clean ones;
    - clean: no owner, content of no interest.

    Fence rule: every block carries the number of the last step that used it (`touch`). A released block changes
    hands only once that step has completed (`settle`). An owner that shares a block through `retain` may take it
    out of quarantine, because device work on it is ordered and its content does not change.

    Args:
        num_blocks: size of the pool.
        on_evict: called with a cached block when its content is given up.

    Attributes:
        on_allocate: called with blocks that change hands, before their new owner knows them.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None] = _ignore) -> None:
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self.on_allocate: Callable[[Sequence[int]], None] = _ignore_all
        self._refs = [0] * num_blocks
        self._last_step = [-1] * num_blocks
        self._cached = [False] * num_blocks
        self._completed_step = -1
        # Ordered by time of release, oldest first; membership, removal and taking the oldest are O(1).
        self._clean: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._clean_map = bytearray(b"\1") * num_blocks  # the same by number: 1 for a clean block
        self._cached_free: OrderedDict[int, None] = OrderedDict()
        self._quarantine: dict[int, dict[int, None]] = {}
        self._num_quarantined = 0

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out now."""
        return len(self._clean) + len(self._cached_free)

    @property
    def num_cached_free(self) -> int:
        """Free blocks whose content can still be found."""
        return len(self._cached_free)

    @property
    def num_quarantined(self) -> int:
        """Released blocks that a step not yet completed uses."""
        return self._num_quarantined

    @property
    def num_used(self) -> int:
        """Blocks that cannot be handed out: referenced or quarantined."""
        return self.num_blocks - self.num_free

    @property
    def completed_step(self) -> int:
        """Number of the last completed step; -1 before the first."""
        return self._completed_step

    def refs(self, block: int) -> int:
        """Owners of a block."""
        return self._refs[block]

    def last_step(self, block: int) -> int:
        """Last step recorded by `touch`; -1 if none."""
        return self._last_step[block]

    def is_free(self, block: int) -> bool:
        """Whether `allocate` could hand this block out."""
        return block in self._clean or block in self._cached_free

    def allocate(self, count: int, after: int | None = None) -> list[int] | None:
        """Take `count` free blocks with one reference each, or None if there are not that many.

        Clean blocks go first, each time the one that follows the previous (or `after`) if it is clean: neighbours
        merge into one move. Then cached ones are evicted, oldest first, and put in ascending order.
        """
        if count > self.num_free:
            return None
        blocks: list[int] = []
        while len(blocks) < count and self._clean:
            block = -1 if after is None else after + 1
            if block not in self._clean:
                block = next(iter(self._clean))
            self._take_clean(block)
            blocks.append(block)
            after = block
        return self._hand_out(blocks, count)

    def allocate_runs(self, count: int) -> list[int] | None:
        """The same, for blocks that a transfer will write: clean blocks go by the length of their runs."""
        if count > self.num_free:
            return None
        blocks = longest_runs(self._clean_map, count)
        for block in blocks:
            self._take_clean(block)
        return self._hand_out(blocks, count)

    def _take_clean(self, block: int) -> None:
        del self._clean[block]
        self._clean_map[block] = 0

    def _hand_out(self, blocks: list[int], count: int) -> list[int]:
        """These blocks and as many evicted ones as are missing get an owner."""
        blocks += sorted(self._evict() for _ in range(count - len(blocks)))
        for block in blocks:
            self._refs[block] = 1
        self.on_allocate(blocks)
        return blocks

    def _evict(self) -> int:
        block, _ = self._cached_free.popitem(last=False)
        self._cached[block] = False
        self._on_evict(block)
        return block

    def retain(self, blocks: Iterable[int]) -> None:
        """Add an owner to each block: referenced, or findable (free or quarantined)."""
        for block in blocks:
            if self._refs[block] == 0:
                self._revive(block)
            self._refs[block] += 1

    def _revive(self, block: int) -> None:
        assert self._cached[block], f"block {block} has no owner and no content to share"
        if block in self._cached_free:
            del self._cached_free[block]
            return
        del self._quarantine[self._last_step[block]][block]
        self._num_quarantined -= 1

    def mark_cached(self, block: int) -> None:
        """The content of an owned block is findable from now on, until it is evicted."""
        assert self._refs[block] > 0, f"block {block} has no owner"
        self._cached[block] = True

    def touch(self, blocks: Iterable[int], step: int) -> None:
        """Record that `step` uses these blocks. Must be known at the latest when an owner releases them."""
        for block in blocks:
            assert self._refs[block] > 0, f"step {step} uses block {block}, which nobody owns"
            if step > self._last_step[block]:
                self._last_step[block] = step

    def release(self, blocks: Iterable[int]) -> None:
        """Give up one reference to each block; the first given is the first to be reused.

        THE FENCE RULE: a block without owners is free only if the last step that used it has completed.
        """
        for block in blocks:
            assert 0 <= block < self.num_blocks, f"release of block {block} of {self.num_blocks}"
            assert self._refs[block] > 0, f"double free of block {block}"
            self._refs[block] -= 1
            if self._refs[block] > 0:
                continue
            if self._last_step[block] <= self._completed_step:
                self._free(block)
            else:
                self._quarantine.setdefault(self._last_step[block], {})[block] = None
                self._num_quarantined += 1

    def _free(self, block: int) -> None:
        if self._cached[block]:
            self._cached_free[block] = None
        else:
            self._clean[block] = None
            self._clean_map[block] = 1

    def settle(self, completed_step: int) -> list[int]:
        """Steps up to `completed_step` are complete, copies included: return the blocks this sets free."""
        assert completed_step >= self._completed_step, (completed_step, self._completed_step)
        self._completed_step = completed_step
        freed: list[int] = []
        for step in [step for step in self._quarantine if step <= completed_step]:
            freed += self._quarantine.pop(step)
        self._num_quarantined -= len(freed)
        for block in freed:
            self._free(block)
        return freed

    def cached_blocks(self) -> set[int]:
        """Blocks whose content is findable, in any state."""
        return {block for block, cached in enumerate(self._cached) if cached}

    def check(self) -> None:
        """Prove that every block is in exactly one state and that nothing free is in use by a step.

        Raises:
            AssertionError: with the numbers.
        """
        referenced = {block for block, refs in enumerate(self._refs) if refs > 0}
        quarantined = [block for blocks in self._quarantine.values() for block in blocks]
        states = [len(self._clean), len(self._cached_free), len(quarantined), len(referenced)]
        assert sum(states) == self.num_blocks, f"clean, cached, quarantined, referenced {states} != {self.num_blocks}"
        seen = referenced.union(self._clean, self._cached_free, quarantined)
        assert len(seen) == self.num_blocks, f"{self.num_blocks - len(seen)} blocks are in no state, others in two"
        clean = {block for block, is_clean in enumerate(self._clean_map) if is_clean}
        assert clean == set(self._clean), f"the map of clean blocks is wrong about {clean ^ set(self._clean)}"
        assert len(quarantined) == self._num_quarantined, (len(quarantined), self._num_quarantined)
        assert all(refs >= 0 for refs in self._refs), "negative reference count"
        assert all(self._cached[block] for block in self._cached_free), "a cached-free block is not findable"
        assert not any(self._cached[block] for block in self._clean), "a clean block is findable"
        for block in (*self._clean, *self._cached_free):
            assert self._last_step[block] <= self._completed_step, f"free block {block} is used by a running step"
        for step, blocks in self._quarantine.items():
            assert step > self._completed_step, f"blocks of completed step {step} still in quarantine"
            assert all(self._last_step[block] == step for block in blocks), f"wrong quarantine bucket {step}"
