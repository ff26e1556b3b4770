"""Where each live sequence is: waiting in a heap, reserved for another engine's KV, or running with a slot and blocks.

Moves them, decides nothing. What a move means to another engine is told here too, so that no path forgets it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from operator import attrgetter

from baton.cache.manager import CacheManager
from baton.core.exchange import Command
from baton.core.request import FinishReason
from baton.sched.gives import Gives
from baton.sched.pins import Pins
from baton.sched.sequence import NO_SLOT, Order, Sequence
from baton.sched.slots import Slots
from baton.sched.status import Status
from baton.sched.takes import Takes

_order = attrgetter("order")


class Roster:
    """Waiting and running sequences, both in (priority, arrival, index) order; landed ones count as running.

    Attributes:
        reserved: sequences whose blocks another engine fills: they hold a slot, and are neither planned nor preempted.
        commands: for the transfer thread, in order; whoever runs the scheduler takes them.
    """

    def __init__(self, max_num_seqs: int, cache: CacheManager) -> None:
        self.cache = cache
        self.slots = Slots(max_num_seqs)
        self.running: list[Sequence] = []
        self.reserved: set[Sequence] = set()
        self.pins = Pins(cache.pool)
        self.commands: list[Command] = []
        self.gives = Gives(cache, self.pins, self.commands)
        self.takes = Takes(self.pins, self.commands)
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
        self._pop(seq)
        seq.start(self.slots.take(), num_hit_tokens)
        insort(self.running, seq, key=_order)
        self.gives.started(seq, num_hit_tokens)

    def start_fork(self, child: Sequence, parent: Sequence) -> None:
        """A sibling outside the queue -> running in a fresh slot, from the parent's prefill or landed blocks."""
        if child.has_output:
            child.fork_landed(self.slots.take())
        else:
            child.fork_from(parent, self.slots.take())
        insort(self.running, child, key=_order)

    def reserve(self, seq: Sequence, num_cached_tokens: int) -> None:
        """First in the queue -> reserved in a fresh slot. Its block table covers the prompt.

        Fence rule: what the network may write has no step in flight (`BlockPool.allocate` hands out nothing else).
        """
        self._pop(seq)
        seq.reserve(self.slots.take())
        self.reserved.add(seq)
        blocks = self.cache.table(seq.key)[num_cached_tokens // self.cache.block_tokens :]
        pool = self.cache.pool
        assert all(pool.refs(block) == 1 and pool.last_step(block) <= pool.completed_step for block in blocks), blocks
        self.takes.reserve(seq, blocks, num_cached_tokens)

    def unreserve(self, seq: Sequence) -> None:
        """Reserved -> waiting outside the queue, without slot and blocks. A pin keeps what it holds."""
        self.reserved.remove(seq)
        self.slots.give_back(seq.unreserve())
        self.cache.release(seq.key)

    def hand_over(self, seq: Sequence, heir: Sequence) -> None:
        """A sibling outside the queue takes slot and blocks of a reserved sequence, which then waits outside it."""
        self.reserved.remove(seq)
        self.reserved.add(heir)
        heir.chain, heir.num_cached_tokens = seq.chain.fork(), seq.num_cached_tokens
        heir.reserve(seq.unreserve())
        self.cache.hand_over(seq.key, heir.key, heir.chain)

    def land(self, seq: Sequence) -> None:
        """Reserved -> landed: it is planned like any running sequence."""
        self.reserved.remove(seq)
        seq.land()
        insort(self.running, seq, key=_order)

    def preempt(self, seq: Sequence) -> None:
        """Running or landed -> back in the queue, without slot and blocks."""
        self.gives.preempted(seq)
        self.scatter_landed(seq)
        self._leave(seq)
        seq.preempt()
        self.num_preemptions += 1
        self.enqueue(seq)

    def scatter_landed(self, seq: Sequence) -> None:
        """Siblings that were to fork from its landed blocks queue as sequences of their own."""
        if seq.status is Status.LANDED:
            for child in seq.live_forks:
                self.enqueue(child)
            seq.forks = []

    def finish(self, seq: Sequence, reason: FinishReason) -> None:
        """Any state -> finished."""
        self.gives.ended(seq, reason)
        if seq.status in (Status.RUNNING, Status.LANDED):
            self._leave(seq)
        elif seq.status is Status.RESERVED:
            self.unreserve(seq)
        seq.finish()

    def settle(self, pin: int) -> None:
        """A transfer has let go of its blocks."""
        self.gives.settled(pin)
        self.takes.settled(pin)
        self.pins.settle(pin)

    def _pop(self, seq: Sequence) -> None:
        assert self._waiting[0][1] is seq
        heapq.heappop(self._waiting)

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
        assert all(seq.status in (Status.RUNNING, Status.LANDED) for seq in self.running)
        assert all(seq.status is Status.RESERVED and seq.awaits_kv for seq in self.reserved)
        holders = [*self.running, *self.reserved]
        assert {seq.slot for seq in holders} == self.slots.taken(), "slots leaked"
        assert len(holders) + self.slots.num_free == self.slots.count
        waiting = [seq for _, seq in self._waiting if seq.status is not Status.FINISHED]
        assert all(seq.status in (Status.WAITING, Status.PREEMPTED) for seq in waiting)
        assert len(set(waiting)) == len(waiting), "a sequence is queued twice"
        for seq in waiting:
            assert seq.slot == NO_SLOT and not self.cache.holds(seq.key), f"queued sequence {seq.order} holds something"
        for seq in holders:
            covered = len(self.cache.table(seq.key)) * self.cache.block_tokens
            assert covered >= seq.num_planned_tokens, (covered, seq.num_planned_tokens)
            seq.check()
