"""Block tables of all sequences over one pool and one prefix index; the scheduler's only view of the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from baton.cache.pool import BlockPool
from baton.cache.prefix import PrefixChain, PrefixIndex, seed_digest
from baton.core.config import CacheConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUsage:
    """Blocks by state. used + free == total; quarantined is part of used, cached_free of free."""

    total: int
    used: int
    free: int
    quarantined: int
    cached_free: int


@dataclass(slots=True)
class _Entry:
    """What one sequence holds: its table, its digests, how many blocks are published, the last step that used it."""

    chain: PrefixChain
    table: list[int] = field(default_factory=list)
    num_published: int = 0
    last_step: int = -1


class CacheManager:
    """Hands blocks to sequences (named by an integer key) and finds prefixes.

    A sequence's life: `find_hit` -> `fits` -> `begin` -> `grow` ... `publish` ... -> `release`.
    Between `begin` and `publish` another engine may write the blocks instead of a step; see `sched/pins.py`.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self._index = PrefixIndex()
        self.pool = BlockPool(config.num_blocks, on_evict=self._index.forget)
        self._entries: dict[int, _Entry] = {}

    @property
    def block_tokens(self) -> int:
        """Tokens of one block."""
        return self.config.block_tokens

    @property
    def usage(self) -> CacheUsage:
        """Blocks by state, now."""
        pool = self.pool
        return CacheUsage(
            total=pool.num_blocks,
            used=pool.num_used,
            free=pool.num_free,
            quarantined=pool.num_quarantined,
            cached_free=pool.num_cached_free,
        )

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold num_tokens."""
        return -(-num_tokens // self.config.block_tokens)

    def chain(self, cache_salt: str, request_key: int) -> PrefixChain:
        """A fresh digest chain. Without prefix caching only sequences of the same request_key share blocks."""
        scope = "shared" if self.config.enable_prefix_caching else f"request {request_key}"
        return PrefixChain(seed_digest(self.config.fingerprint, cache_salt, scope), self.config.block_tokens)

    def find_hit(self, chain: PrefixChain, tokens: Sequence[int], *, whole: bool = False) -> list[int]:
        """Longest cached run of full blocks from the start of tokens.

        Args:
            whole: the hit may cover all tokens; otherwise at least one is left to compute.
        """
        limit = (len(tokens) if whole else len(tokens) - 1) // self.config.block_tokens
        hit: list[int] = []
        for digest in chain.extend(tokens, limit)[:limit]:
            block = self._index.find(digest)
            if block is None:
                break
            hit.append(block)
        return hit

    def fits(self, hit: Sequence[int], num_tokens: int, spare: int = 0) -> bool:
        """Whether `begin` with this hit and `grow` to num_tokens would succeed now, and leave `spare` blocks free."""
        revived = sum(self.pool.is_free(block) for block in hit)
        return self.blocks_for(num_tokens) - len(hit) + revived + spare <= self.pool.num_free

    def begin(self, key: int, chain: PrefixChain, hit: Sequence[int]) -> None:
        """Open a table that starts with the blocks of a hit."""
        assert key not in self._entries, f"sequence {key} already holds blocks"
        self.pool.retain(hit)
        self._entries[key] = _Entry(chain, list(hit), num_published=len(hit))

    def missing(self, key: int, num_tokens: int) -> int:
        """Blocks by which the table is too short for num_tokens."""
        return max(0, self.blocks_for(num_tokens) - len(self._entries[key].table))

    def grow(self, key: int, num_tokens: int, *, in_runs: bool = False) -> tuple[int, ...] | None:
        """Make the table cover num_tokens. Returns the new blocks (maybe none), or None if too few are free.

        Args:
            in_runs: prefer long runs of neighbours: another engine will write them.
        """
        missing = self.missing(key, num_tokens)
        if missing == 0:
            return ()
        table = self._entries[key].table
        if in_runs:
            new = self.pool.allocate_runs(missing)
        else:
            new = self.pool.allocate(missing, after=table[-1] if table else None)
        if new is None:
            return None
        table += new
        return tuple(new)

    def fork(
        self, key: int, child: int, chain: PrefixChain, num_tokens: int
    ) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]] | None:
        """Open a table for `child` with the first num_tokens of `key`: full blocks shared, a partial tail copied.

        Returns:
            (table, copies (source block, destination block)), or None if there is no block for the tail.
        """
        parent = self._entries[key]
        num_full = num_tokens // self.config.block_tokens
        shared = parent.table[:num_full]
        tail = self.pool.allocate(self.blocks_for(num_tokens) - num_full, after=shared[-1] if shared else None)
        if tail is None:
            return None
        self.pool.retain(shared)
        assert child not in self._entries, f"sequence {child} already holds blocks"
        self._entries[child] = _Entry(chain, shared + tail, min(parent.num_published, num_full))
        return (*shared, *tail), tuple((parent.table[num_full], block) for block in tail)

    def hand_over(self, key: int, heir: int, chain: PrefixChain) -> None:
        """The table of `key` becomes that of `heir`, whose tokens are the same so far."""
        assert heir not in self._entries, f"sequence {heir} already holds blocks"
        entry = self._entries[heir] = self._entries.pop(key)
        entry.chain = chain

    def table(self, key: int) -> tuple[int, ...]:
        """Blocks of a sequence, in order."""
        return tuple(self._entries[key].table)

    def holds(self, key: int) -> bool:
        """Whether the sequence has a table."""
        return key in self._entries

    def publish(self, key: int, tokens: Sequence[int], num_computed: int) -> None:
        """Make full blocks findable. The first num_computed tokens are known and their step has completed."""
        entry = self._entries[key]
        num_full = num_computed // self.config.block_tokens
        if num_full <= entry.num_published:
            return
        digests = entry.chain.extend(tokens, num_full)
        for i in range(entry.num_published, num_full):
            if self._index.add(digests[i], entry.table[i]):
                self.pool.mark_cached(entry.table[i])
        entry.num_published = num_full

    def touch(self, key: int, step: int) -> None:
        """`step` uses the sequence's blocks. O(1): the pool learns it when the sequence lets go."""
        entry = self._entries[key]
        assert step >= entry.last_step, (step, entry.last_step)
        entry.last_step = step

    def last_step(self, key: int) -> int:
        """Last step that used the sequence's blocks; -1 if none."""
        return self._entries[key].last_step

    def release(self, key: int) -> None:
        """The sequence lets go of its blocks; the tail is reused before the head of the prefix."""
        entry = self._entries.pop(key)
        if entry.last_step >= 0:
            self.pool.touch(entry.table, entry.last_step)
        self.pool.release(reversed(entry.table))

    def settle(self, completed_step: int) -> None:
        """Steps up to completed_step are complete, copies included."""
        self.pool.settle(completed_step)

    def check(self, held: Iterable[int] = ()) -> None:
        """Prove that pool, tables and index agree. `held`: blocks that others own, once per reference.

        Raises:
            AssertionError: with the numbers.
        """
        self.pool.check()
        owners = Counter(held)
        for key, entry in self._entries.items():
            assert len(set(entry.table)) == len(entry.table), f"sequence {key} holds a block twice: {entry.table}"
            owners.update(entry.table)
        for block in range(self.pool.num_blocks):
            refs = self.pool.refs(block)
            assert refs == owners[block], f"block {block} has {refs} references and {owners[block]} owners"
        assert self._index.blocks() == self.pool.cached_blocks(), "index and pool disagree on findable blocks"
