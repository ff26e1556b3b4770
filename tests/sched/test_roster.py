"""Order of the two lists, and what a move gives back."""

from itertools import count

import pytest

from baton.cache.manager import CacheManager
from baton.cache.prefix import PrefixChain
from baton.core.config import CacheConfig
from baton.core.request import FinishReason, Request
from baton.core.sampling import SamplingParams
from baton.sched.roster import Roster
from baton.sched.sequence import Sequence
from baton.sched.status import Status

_keys = count()


def roster(slots: int = 4) -> Roster:
    return Roster(slots, CacheManager(CacheConfig(block_tokens=4, num_blocks=8)))


def sequence(priority: int, arrival: int) -> Sequence:
    request = Request(request_id=f"{priority}.{arrival}", prompt_token_ids=(1, 2), params=SamplingParams())
    return Sequence(
        request=request,
        index=0,
        key=next(_keys),
        order=(priority, arrival, 0),
        chain=PrefixChain(b"", 4),
        limit=18,
        tokens=[1, 2],
    )


def start(where: Roster, seq: Sequence) -> None:
    where.enqueue(seq)
    where.cache.begin(seq.key, seq.chain, [])
    assert where.cache.grow(seq.key, 2) is not None
    where.start(seq, 0)


def test_the_queue_is_by_priority_then_arrival() -> None:
    queue = roster()
    seqs = [sequence(1, 0), sequence(0, 2), sequence(0, 1)]
    for seq in seqs:
        queue.enqueue(seq)
    assert queue.next_waiting() is seqs[2]
    queue.finish(seqs[2], FinishReason.ABORT)
    assert queue.next_waiting() is seqs[1]
    queue.finish(seqs[1], FinishReason.ABORT)
    assert queue.next_waiting() is seqs[0]
    queue.finish(seqs[0], FinishReason.ABORT)
    assert queue.next_waiting() is None


def test_running_stays_in_order_whatever_the_order_of_admission() -> None:
    where = roster()
    late, early = sequence(1, 0), sequence(0, 5)
    start(where, late)
    start(where, early)
    assert where.running == [early, late]
    where.check()


def test_preemption_gives_back_slot_and_blocks_and_queues() -> None:
    where = roster()
    seq = sequence(0, 0)
    start(where, seq)
    where.preempt(seq)
    assert (where.running, where.slots.num_free, where.cache.usage.used) == ([], 4, 0)
    assert where.next_waiting() is seq
    assert where.num_preemptions == 1
    where.check()


@pytest.mark.parametrize("status", [Status.WAITING, Status.RUNNING, Status.PREEMPTED])
def test_a_sequence_can_end_in_any_state(status: Status) -> None:
    where = roster()
    seq = sequence(0, 0)
    if status is Status.WAITING:
        where.enqueue(seq)
    else:
        start(where, seq)
    if status is Status.PREEMPTED:
        where.preempt(seq)
    where.finish(seq, FinishReason.ABORT)
    assert seq.status is Status.FINISHED
    assert (where.running, where.next_waiting(), where.slots.num_free, where.cache.usage.used) == ([], None, 4, 0)
    where.check()


def test_check_sees_a_leaked_slot() -> None:
    where = roster()
    where.slots.take()
    with pytest.raises(AssertionError, match="slots leaked"):
        where.check()
