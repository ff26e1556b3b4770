"""Where each live sequence is: waiting in a heap, or running with a slot and blocks. Moves them, decides nothing."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from operator import attrgetter

from baton.cache.manager import CacheManager
from baton.sched.sequence import NO_SLOT, Order, Sequence
from baton.sched.slots import Slots
from baton.sched.status import Status

_order = attrgetter("order")


class Roster:
    """Waiting and running sequences, both in (priority, arrival, index) order."""

    def __init__(self, max_num_seqs: int, cache: CacheManager) -> None:
        self.cache = cache
        self.slots = Slots(max_num_seqs)
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0
        self._waiting: list[tuple[Order, Sequence]] = []

    def enqueue(self, seq: Sequence) -> None:
        """Put a waiting or preempted sequence into the queue."""
        heapq.heappush(self._waiting, (seq.order, seq))

    def next_waiting(self) -> Sequence | None:
        """First in the queue (it stays there). Sequences that ended in the queue are dropped on the way."""
        while self._waiting and self._waiting[0][1].status is Status.FINISHED:
            heapq.heappop(self._waiting)
        return self._waiting[0][1] if self._waiting else None

    def start(self, seq: Sequence, num_hit_tokens: int) -> None:
        """First in the queue -> running in a fresh slot. Its block table is open."""
        assert self._waiting[0][1] is seq
        heapq.heappop(self._waiting)
        seq.start(self.slots.take(), num_hit_tokens)
        insort(self.running, seq, key=_order)

    def start_fork(self, child: Sequence, parent: Sequence) -> None:
        """A sibling outside the queue -> running in a fresh slot, from the parent's prefill."""
        child.fork_from(parent, self.slots.take())
        insort(self.running, child, key=_order)

    def preempt(self, seq: Sequence) -> None:
        """Running -> back in the queue, without slot and blocks."""
        self._leave(seq)
        seq.preempt()
        self.num_preemptions += 1
        self.enqueue(seq)

    def finish(self, seq: Sequence) -> None:
        """Any state -> finished."""
        if seq.status is Status.RUNNING:
            self._leave(seq)
        seq.finish()

    def _leave(self, seq: Sequence) -> None:
        place = bisect_left(self.running, seq.order, key=_order)
        assert self.running[place] is seq
        del self.running[place]
        self.slots.give_back(seq.slot)
        self.cache.release(seq.key)

    def check(self) -> None:
        """Assert that slots, tables, queue and statuses agree."""
        orders = [seq.order for seq in self.running]
        assert orders == sorted(set(orders)), orders
        assert all(seq.status is Status.RUNNING for seq in self.running)
        assert {seq.slot for seq in self.running} == self.slots.taken(), "slots leaked"
        assert len(self.running) + self.slots.num_free == self.slots.count
        waiting = [seq for _, seq in self._waiting if seq.status is not Status.FINISHED]
        assert all(seq.status in (Status.WAITING, Status.PREEMPTED) for seq in waiting)
        assert len(set(waiting)) == len(waiting), "a sequence is queued twice"
        for seq in waiting:
            assert seq.slot == NO_SLOT and not self.cache.holds(seq.key), f"queued sequence {seq.order} holds something"
        for seq in self.running:
            covered = len(self.cache.table(seq.key)) * self.cache.block_tokens
            assert covered >= seq.num_planned_tokens, (covered, seq.num_planned_tokens)
            seq.check()
