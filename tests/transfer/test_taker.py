"""Each edge of the taker's states, one test an edge: what it says, lands, fails and settles."""

from __future__ import annotations

from typing import Any

import pytest

from baton.core.exchange import Expect, Failed, FirstToken, Forgo, Landed, Reserve, Settled
from baton.core.handoff import PeerAddress, TransferMode
from baton.transfer.giver import Giver
from baton.transfer.link import Link
from baton.transfer.memory_agent import MemoryNetwork, PendingPost
from baton.transfer.push import Pusher
from baton.transfer.taker import Taker
from baton.wire.handoff import Cancel, Cancelled, Done, Expired, Fail, Gone, NotNeeded, Offer, Reserving, Taken
from tests.transfer.hosts import DEAD_S, LEASE_S, PORT, QUARANTINE_S, TIMEOUT_S, Setup, make_giver, make_taker

PULL = TransferMode.PULL
TOKEN = (FirstToken(index=0, token_id=7),)
LANDED = Landed(transfer_id="t", first_tokens=TOKEN)
SETTLED = Settled(pin=1)
PROMPT = b"digest of the prompt"


class Side:
    """A taker whose messages are kept, and posts wait; prompts have 3 tokens, blocks 2."""

    def __init__(self, mode: TransferMode = TransferMode.PUSH, ranks: int = 1) -> None:
        self.now, self.confirmed_s, self.dialled = 0.0, 0.0, 0
        self.sent, self.network = list[Any](), MemoryNetwork()
        setup, self.mode = Setup(mode=mode, ranks=ranks), mode
        self.host = make_taker(Taker, setup, self.network, self.clock, self, lambda engine_id: self.confirmed_s)
        controls = [self] * ranks
        givers = [
            make_giver((Giver, Pusher), setup, self.network, self.clock, controls, number, self.host)
            for number in range(2)
        ]
        self.links = [giver.link for giver in givers]
        self.taker: Taker = self.host.engines[0]
        self.source = PeerAddress(host="giver", port=PORT, engine_id="giver-0")

    def clock(self) -> float:
        return self.now

    def send(self, engine_id: str, message: Any) -> None:
        self.sent.append(message)

    def dial(self, host: str, port: int) -> None:
        self.dialled += 1

    def expect(self) -> None:
        self.taker.command(Expect(transfer_id="t", source=self.source, mode=self.mode))

    def linked(self, incarnation: int = 0) -> None:
        self.taker.linked("giver", PORT, self.links[incarnation])

    def reserve(self) -> None:
        reserve = Reserve(
            pin=1,
            transfer_id="t",
            source=self.source,
            block_ids=(0, 1),
            num_tokens=3,
            prompt_digest=PROMPT,
            num_cached_tokens=0,
        )
        self.taker.command(reserve)

    def reserved(self) -> None:
        """Expect, link, reserve; what was said is forgotten."""
        self.expect()
        self.linked()
        self.reserve()
        self.sent.clear()

    def forgo(self) -> None:
        self.taker.command(Forgo(transfer_id="t"))

    def hear(self, message: Any, link: Link | None = None) -> None:
        self.taker.from_giver(link or self.links[0], message)

    def done(self, rank: int = 0, num_tokens: int = 3) -> Done:
        return Done(transfer_id="t", rank=rank, num_tokens=num_tokens, first_tokens=TOKEN)

    def offer(self) -> None:
        self.hear(Offer(transfer_id="t", rank=0, block_ids=(0, 1), num_tokens=3, first_tokens=TOKEN, digests={0: None}))

    def read(self, error: str | None = None) -> None:
        """The READ that is under way ends."""
        (post,) = [item for item in self.network.pending() if isinstance(item, PendingPost)]
        self.network.deliver(post) if error is None else self.network.fail(post, error)
        (ended,) = self.host.agents[0].poll()[0]
        assert self.taker.ended(ended)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.taker.tick()

    def events(self) -> list[Any]:
        """Since the last call; without reasons and records."""
        events = [type(event) if isinstance(event, Failed) else event for event in self.taker.events]
        self.taker.events.clear()
        return [Settled(pin=event.pin) if isinstance(event, Settled) else event for event in events]


RESERVING = Reserving(
    transfer_id="t",
    mode=TransferMode.PUSH,
    block_ids=(0, 1),
    num_tokens=3,
    prompt_digest=PROMPT,
    num_cached_tokens=0,
)
CANCEL = Cancel(transfer_id="t")
NOT_NEEDED = NotNeeded(transfer_id="t")
CANCELLED = Cancelled(transfer_id="t", rank=0)
FAIL = Fail(transfer_id="t", rank=0, reason="why")


class TestWaiting:
    def test_expect_dials(self) -> None:
        side = Side()
        side.expect()
        assert (side.dialled, side.sent) == (1, [])

    @pytest.mark.parametrize("order", ["link first", "blocks first"])
    def test_waiting_to_reserved_when_linked_and_blocks_are_there(self, order: str) -> None:
        side = Side()
        side.expect()
        for step in (side.linked, side.reserve) if order == "link first" else (side.reserve, side.linked):
            assert side.sent == []
            step()
        assert side.sent == [RESERVING]

    def test_waiting_forgone_says_not_needed(self) -> None:
        side = Side()
        side.expect()
        side.linked()
        side.forgo()
        assert (side.sent, side.events(), side.taker.num_open) == ([NOT_NEEDED], [], 0)

    def test_waiting_forgone_before_the_link_says_so_when_linked(self) -> None:
        side = Side()
        side.expect()
        side.reserve()
        side.forgo()
        assert side.events() == [SETTLED]  # nobody was told of the blocks
        side.linked()
        assert (side.sent, side.taker.num_open) == ([NOT_NEEDED], 0)

    @pytest.mark.parametrize("refused", [False, True])
    def test_waiting_to_failed_when_no_link_can_be_made(self, refused: bool) -> None:
        side = Side()
        side.expect()
        side.taker.unreachable("giver", PORT, "why", refused=refused)
        (failed,) = side.taker.events
        assert isinstance(failed, Failed) and failed.refused is refused
        side.taker.events.clear()
        side.reserve()  # it was under way
        assert (side.events(), side.taker.num_open) == ([SETTLED], 0)

    def test_waiting_to_failed_when_another_incarnation_answers_for_some_time(self) -> None:
        side = Side()
        side.expect()
        side.reserve()
        side.linked(incarnation=1)
        assert side.events() == []
        side.tick(3.0)
        assert (side.events(), side.sent, side.taker.num_open) == ([Failed, SETTLED], [], 0)

    def test_waiting_to_failed_when_the_giver_gives_up(self) -> None:
        side = Side()
        side.expect()
        side.linked()
        side.hear(FAIL)
        assert (side.events(), side.sent) == ([Failed], [NOT_NEEDED])


class TestPush:
    def test_reserved_to_landed_when_done(self) -> None:
        side = Side()
        side.reserved()
        side.hear(side.done())
        assert (side.events(), side.sent, side.taker.num_open) == ([LANDED, SETTLED], [], 0)

    def test_reserved_to_landed_when_each_rank_is_done_the_same_twice_is_not_enough(self) -> None:
        side = Side(ranks=2)
        side.reserved()
        side.hear(side.done(rank=1))
        side.hear(side.done(rank=1))
        assert side.events() == []
        side.hear(side.done(rank=0))
        assert side.events() == [LANDED, SETTLED]

    def test_reserved_fail_settles_at_once(self) -> None:
        """The only rank has drained; Cancel tells the others, and is answered to nobody."""
        side = Side()
        side.reserved()
        side.hear(FAIL)
        assert (side.events(), side.sent, side.taker.num_open) == ([Failed, SETTLED], [CANCEL], 0)

    def test_reserved_fail_of_one_rank_waits_for_the_other(self) -> None:
        side = Side(ranks=2)
        side.reserved()
        side.hear(FAIL)
        assert side.events() == [Failed]
        side.hear(Cancelled(transfer_id="t", rank=1))
        assert side.events() == [SETTLED]

    @pytest.mark.parametrize("message", [Expired(transfer_id="t"), Gone(transfer_id="t")])
    def test_reserved_expired_and_gone_fail_and_wait_for_cancelled(self, message: Expired | Gone) -> None:
        side = Side()
        side.reserved()
        side.hear(message)
        assert (side.events(), side.sent) == ([Failed], [CANCEL])
        side.hear(CANCELLED)
        assert (side.events(), side.taker.num_open) == ([SETTLED], 0)

    def test_reserved_forgone_keeps_its_blocks_until_cancelled(self) -> None:
        side = Side()
        side.reserved()
        side.forgo()
        assert (side.events(), side.sent) == ([], [CANCEL])
        side.hear(CANCELLED)
        assert side.events() == [SETTLED]

    def test_reserved_forgone_done_settles_and_does_not_land(self) -> None:
        side = Side()
        side.reserved()
        side.forgo()
        side.hear(side.done())
        side.hear(CANCELLED)
        assert (side.events(), side.taker.num_late) == ([SETTLED], 1)

    def test_reserved_times_out(self) -> None:
        side = Side()
        side.reserved()
        side.tick(TIMEOUT_S - 1)
        assert side.events() == []
        side.tick(1)
        assert (side.events(), side.sent) == ([Failed], [CANCEL])
        side.tick(100 * TIMEOUT_S)  # no clock settles what a living giver may write
        assert side.events() == []
        side.hear(side.done())
        assert side.events() == [SETTLED]

    def test_reserved_done_for_another_length_fails(self) -> None:
        side = Side()
        side.reserved()
        side.hear(side.done(num_tokens=4))
        assert side.events() == [Failed, SETTLED]

    def test_reserved_another_incarnation_is_not_heard(self) -> None:
        side = Side()
        side.reserved()
        side.hear(side.done(), side.links[1])
        side.hear(CANCELLED, side.links[1])
        assert (side.events(), side.taker.num_late) == ([], 2)


class TestLoss:
    def test_reserved_giver_silent_fails_at_once_and_settles_after_the_quarantine(self) -> None:
        side = Side()
        side.reserved()
        side.taker.giver_lost("giver-0", "silent", dead=False)
        assert (side.events(), side.taker.num_quarantined) == ([Failed], 1)
        side.tick(QUARANTINE_S - 1)
        assert side.events() == []
        side.tick(1)
        assert (side.events(), side.taker.num_open) == ([SETTLED], 0)

    def test_reserved_giver_silent_settles_early_when_it_is_back_and_answers(self) -> None:
        side = Side()
        side.reserved()
        side.taker.giver_lost("giver-0", "silent", dead=False)
        side.linked()
        assert side.sent == [CANCEL]
        side.tick(2 * QUARANTINE_S)  # it lives: now only its answer counts
        assert side.events() == [Failed]
        side.hear(CANCELLED)
        assert side.events() == [SETTLED]

    def test_reserved_giver_silent_settles_early_when_its_done_comes(self) -> None:
        side = Side()
        side.reserved()
        side.taker.giver_lost("giver-0", "silent", dead=False)
        side.hear(side.done())
        assert side.events() == [Failed, SETTLED]

    @pytest.mark.parametrize("silent_before", [False, True])
    def test_reserved_giver_dead_settles_when_its_last_writes_have_landed(self, silent_before: bool) -> None:
        side = Side()
        side.reserved()
        if silent_before:
            side.taker.giver_lost("giver-0", "silent", dead=False)
        side.taker.giver_lost("giver-0", "another has taken its place", dead=True)
        side.linked(incarnation=1)
        assert (side.events(), side.sent) == ([Failed], [])
        side.tick(DEAD_S)
        assert side.events() == [SETTLED]

    def test_waiting_giver_lost_fails_and_is_over(self) -> None:
        side = Side()
        side.expect()
        side.linked()
        side.taker.giver_lost("giver-0", "silent", dead=False)
        assert (side.events(), side.taker.num_open) == ([Failed], 0)

    def test_reserved_linked_again_says_reserving_again(self) -> None:
        side = Side()
        side.reserved()
        side.linked()
        assert side.sent == [RESERVING]

    def test_cancelled_linked_again_says_cancel_again(self) -> None:
        side = Side()
        side.reserved()
        side.forgo()
        side.linked()
        assert side.sent == [CANCEL, CANCEL]


class TestOtherMode:
    """An authentic giver that does what it was not asked to: nothing of it is used."""

    def test_a_done_of_a_pull_is_late(self) -> None:
        side = Side(PULL)
        side.reserved()
        side.hear(side.done())
        assert (side.events(), side.sent, side.taker.num_late) == ([], [], 1)

    def test_an_offer_of_a_push_is_late(self) -> None:
        side = Side()
        side.reserved()
        side.offer()
        assert (side.events(), side.sent, side.taker.num_late) == ([], [], 1)


class TestPull:
    def test_reserved_offer_to_reading_to_landed(self) -> None:
        side = Side(PULL)
        side.reserved()
        side.offer()
        side.offer()  # said again: one READ
        assert side.events() == []
        side.read()
        assert (side.events(), side.sent) == ([LANDED, SETTLED], [Taken(transfer_id="t")])

    def test_reading_fails_when_the_read_does(self) -> None:
        side = Side(PULL)
        side.reserved()
        side.offer()
        side.read(error="broken")
        assert (side.events(), side.sent) == ([Failed, SETTLED], [CANCEL])

    def test_reading_forgone_settles_when_the_read_has_ended(self) -> None:
        side = Side(PULL)
        side.reserved()
        side.offer()
        side.forgo()
        side.hear(CANCELLED)
        assert (side.events(), side.sent) == ([], [CANCEL])
        side.read()
        assert side.events() == [SETTLED]

    @pytest.mark.parametrize("late_s", [-1.0, 0.0])
    def test_reading_lands_only_within_the_lease_that_the_giver_is_known_to_keep(self, late_s: float) -> None:
        side = Side(PULL)
        side.reserved()
        side.offer()
        side.now = side.confirmed_s + LEASE_S + late_s
        side.read()
        assert side.events() == ([LANDED, SETTLED] if late_s < 0 else [Failed, SETTLED])

    def test_reserved_giver_lost_settles_at_once_it_writes_nothing(self) -> None:
        side = Side(PULL)
        side.reserved()
        side.taker.giver_lost("giver-0", "silent", dead=False)
        assert side.events() == [Failed, SETTLED]

    def test_reading_giver_lost_settles_when_the_read_has_ended(self) -> None:
        side = Side(PULL)
        side.reserved()
        side.offer()
        side.taker.giver_lost("giver-0", "silent", dead=False)
        assert side.events() == [Failed]
        side.read(error="no answer")
        assert side.events() == [SETTLED]
