"""Each edge of the giver's states, one test an edge: what it says, posts and settles."""

from __future__ import annotations

from typing import Any

import pytest

from baton.core.exchange import Announce, FirstToken, Grant, Prefilled, Progress, Settled, Withdraw
from baton.core.handoff import TransferMode
from baton.transfer.agent import AgentError
from baton.transfer.giver import Giver
from baton.transfer.link import Link
from baton.transfer.memory_agent import MemoryNetwork, PendingNotice, PendingPost
from baton.transfer.push import Pusher
from baton.transfer.taker import Taker
from baton.wire.handoff import Alive, Cancel, Cancelled, Expired, Fail, Gone, NotNeeded, Offer, Reserving, Taken
from tests.transfer.hosts import LEASE_S, Setup, make_giver, make_taker

PULL = TransferMode.PULL
TOKEN = (FirstToken(index=0, token_id=7),)
PROMPT = b"digest of the prompt"


class Side:
    """A giver whose messages are kept, and posts wait; prompts have 3 tokens, blocks 2."""

    def __init__(self, mode: TransferMode = TransferMode.PUSH) -> None:
        self.now, self.sent = 0.0, list[Any]()
        self.network, setup, self.mode = MemoryNetwork(), Setup(mode=mode), mode
        taker = make_taker(Taker, setup, self.network, self.clock, self, lambda engine_id: 0.0)
        self.host = make_giver((Giver, Pusher), setup, self.network, self.clock, [self], 0, taker)
        self.giver: Giver = self.host.engines[0]
        self.link, self.pins = taker.link, 0

    def clock(self) -> float:
        return self.now

    def send(self, engine_id: str, message: Any) -> None:
        self.sent.append(message)

    def dial(self, host: str, port: int) -> None:
        raise AssertionError("a giver does not dial")

    def grant(self, num_final_tokens: int = 0, block_ids: tuple[int, ...] = (0, 1)) -> None:
        self.pins += 1
        grant = Grant(
            pin=self.pins,
            transfer_id="t",
            block_ids=block_ids,
            num_tokens=3,
            prompt_digest=PROMPT,
            num_final_tokens=num_final_tokens,
        )
        self.giver.command(grant)

    def progress(self, num_tokens: int) -> None:
        self.giver.command(Progress(transfer_id="t", num_final_tokens=num_tokens))

    def prefilled(self) -> None:
        self.giver.command(Prefilled(transfer_id="t", first_tokens=TOKEN))

    def withdraw(self, *, again: bool = False) -> None:
        self.giver.command(Withdraw(transfer_id="t", reason="why", again=again))

    def hear(self, message: Any, link: Link | None = None) -> None:
        self.giver.from_taker(link or self.link, message)

    def reserving(
        self, num_tokens: int = 3, num_cached: int = 0, blocks: tuple[int, ...] = (0, 1), prompt: bytes = PROMPT
    ) -> None:
        wanted = Reserving(
            transfer_id="t",
            mode=self.mode,
            block_ids=() if num_cached == num_tokens else blocks,
            num_tokens=num_tokens,
            prompt_digest=prompt,
            num_cached_tokens=num_cached,
        )
        self.hear(wanted)

    def fence(self, reason: str) -> None:
        """From here on nothing may be posted."""

        def closed(now: float) -> None:
            raise AgentError(reason)

        self.giver._flights.fence = closed

    def posts(self) -> list[PendingPost]:
        return [item for item in self.network.pending() if isinstance(item, PendingPost)]

    def land(self, error: str | None = None) -> None:
        (post,) = self.posts()
        self.network.deliver(post) if error is None else self.network.fail(post, error)
        (ended,) = self.host.agents[0].poll()[0]
        assert self.giver.ended(ended)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.giver.tick()

    def settled(self) -> list[int]:
        """Pins, in order; all events are taken."""
        pins = [event.pin for event in self.giver.events if isinstance(event, Settled)]
        assert len(pins) == len(self.giver.events), "a giver says nothing else"
        self.giver.events.clear()
        return pins


class TestPush:
    def test_running_to_posting_as_soon_as_a_block_is_final(self) -> None:
        side = Side()
        side.reserving()
        side.grant()
        assert not side.posts()
        side.progress(2)
        assert [post.notice for post in side.posts()] == [None]

    def test_running_reserving_comes_last_and_posts_what_is_final(self) -> None:
        side = Side()
        side.grant(num_final_tokens=2)
        side.reserving()
        assert len(side.posts()) == 1

    def test_posting_one_write_at_a_time_the_last_with_done(self) -> None:
        side = Side()
        side.reserving()
        side.grant()
        side.progress(2)
        side.prefilled()
        assert len(side.posts()) == 1
        side.land()
        (last,) = side.posts()
        assert last.notice is not None

    def test_posting_to_sent_settles_when_the_last_write_has_ended(self) -> None:
        side = Side()
        side.reserving()
        side.grant()
        side.prefilled()
        assert side.settled() == []
        side.land()
        assert (side.settled(), side.sent, side.giver.num_open) == ([1], [], 0)

    def test_prefilled_to_sent_with_nothing_to_move(self) -> None:
        side = Side()
        side.reserving(num_cached=3)
        side.grant()
        side.prefilled()
        assert isinstance(side.network.pending()[0], PendingNotice) and not side.posts()
        assert side.settled() == [1]

    def test_posting_to_failed_when_a_write_fails(self) -> None:
        side = Side()
        side.reserving()
        side.grant()
        side.prefilled()
        side.land(error="broken")
        assert side.sent == [Fail(transfer_id="t", rank=0, reason="the transfer failed: broken")]
        assert side.settled() == [1]

    def test_posting_to_failed_when_the_taker_names_blocks_that_it_has_not(self) -> None:
        side = Side()
        side.reserving(blocks=(0, 99))
        side.grant()
        side.prefilled()
        assert [type(message) for message in side.sent] == [Fail]
        assert (side.posts(), side.settled()) == ([], [1])

    def test_posting_aborted_drains_then_fails(self) -> None:
        side = Side()
        side.reserving()
        side.grant(num_final_tokens=2)
        side.withdraw()
        assert (side.sent, side.settled()) == ([], [])
        side.land()
        assert side.sent == [Fail(transfer_id="t", rank=0, reason="why")]
        assert (side.posts(), side.settled()) == ([], [1])

    def test_posting_cancelled_drains_then_answers(self) -> None:
        side = Side()
        side.reserving()
        side.grant(num_final_tokens=2)
        side.hear(Cancel(transfer_id="t"))
        side.prefilled()
        assert (side.sent, side.settled()) == ([], [])
        side.land()
        assert (side.sent, side.posts(), side.settled()) == ([Cancelled(transfer_id="t", rank=0)], [], [1])

    def test_posting_a_lease_does_not_end_in_flight(self) -> None:
        side = Side()
        side.reserving()
        side.grant()
        side.prefilled()
        side.tick(3 * LEASE_S)
        assert (side.settled(), side.sent) == ([], [])
        side.land()
        assert side.settled() == [1]

    def test_posting_taker_lost_drains_then_frees(self) -> None:
        side = Side()
        side.reserving()
        side.grant()
        side.prefilled()
        side.giver.taker_lost("taker-0", "silent")
        assert side.settled() == []
        side.land()
        assert side.settled() == [1]

    def test_posting_preempted_settles_the_old_pin_when_its_write_ends_and_posts_the_rest_from_new_blocks(self) -> None:
        side = Side()
        side.reserving()
        side.grant(num_final_tokens=2)
        side.withdraw(again=True)
        side.grant(num_final_tokens=0, block_ids=(2, 3))
        side.prefilled()
        assert (side.settled(), len(side.posts())) == ([], 1)
        side.land()
        assert side.settled() == [1]
        (post,) = side.posts()  # all of it: what was computed anew is sent anew
        assert post.moves[:, 2].sum() == 2 * side.host.pool.ranks[0].block_bytes
        side.land()
        assert side.settled() == [2]


class TestLease:
    def test_prefilled_to_expired_when_nobody_comes(self) -> None:
        side = Side()
        side.grant()
        side.prefilled()
        side.tick(LEASE_S - 1)
        assert side.settled() == []
        side.tick(1)
        assert (side.settled(), side.giver.num_expired) == ([1], 1)
        side.reserving()
        assert side.sent == [Expired(transfer_id="t")]

    def test_prefilled_alive_renews_the_lease(self) -> None:
        side = Side()
        side.grant()
        side.prefilled()
        side.tick(LEASE_S - 1)
        side.hear(Alive(number=0, transfer_ids=("t",)))
        side.tick(LEASE_S - 1)
        assert side.settled() == []
        side.tick(1)
        assert side.settled() == [1]

    def test_prefilled_not_needed_frees_at_once(self) -> None:
        side = Side()
        side.grant()
        side.prefilled()
        side.hear(NotNeeded(transfer_id="t"))
        assert (side.settled(), side.sent) == ([1], [])

    def test_running_has_no_lease(self) -> None:
        side = Side()
        side.grant()
        side.tick(10 * LEASE_S)
        assert side.settled() == []

    def test_unmatched_to_gone_when_no_prefill_comes(self) -> None:
        side = Side()
        side.reserving()
        side.tick(LEASE_S)
        assert (side.sent, side.giver.num_open) == ([Gone(transfer_id="t")], 0)

    def test_unmatched_to_waiting_when_the_prefill_is_announced(self) -> None:
        side = Side()
        side.reserving()
        side.giver.command(Announce(transfer_id="t"))
        side.tick(10 * LEASE_S)
        assert (side.sent, side.giver.num_open) == ([], 1)

    @pytest.mark.parametrize("live", ["announced", "prefilled later"])
    def test_every_lease_that_is_over_ends_whatever_stands_before_it(self, live: str) -> None:
        side = Side()
        live_grant = Grant(pin=8, transfer_id="live", block_ids=(2, 3), num_tokens=3, prompt_digest=PROMPT)
        side.giver.command(live_grant)
        side.grant()
        side.prefilled()
        side.tick(LEASE_S - 1)
        if live == "prefilled later":
            side.giver.command(Prefilled(transfer_id="live", first_tokens=TOKEN))
        side.tick(1)
        assert side.settled() == [1]


class TestEnded:
    @pytest.mark.parametrize("end", [Cancel(transfer_id="t"), NotNeeded(transfer_id="t")])
    def test_a_grant_that_comes_after_the_end_is_settled_at_once(self, end: Cancel | NotNeeded) -> None:
        side = Side()
        side.hear(end)
        side.grant()
        side.progress(2)
        side.prefilled()
        assert (side.settled(), side.giver.num_open) == ([1], 0)

    def test_cancel_is_answered_again(self) -> None:
        side = Side()
        side.hear(Cancel(transfer_id="t"))
        side.hear(Cancel(transfer_id="t"))
        assert side.sent == [Cancelled(transfer_id="t", rank=0)] * 2

    def test_a_reservation_after_an_abort_is_answered_gone(self) -> None:
        side = Side()
        side.giver.command(Announce(transfer_id="t"))
        side.withdraw()
        side.reserving()
        assert side.sent == [Gone(transfer_id="t")]

    def test_a_reservation_after_sent_is_not_answered_its_done_is_there(self) -> None:
        side = Side()
        side.reserving()
        side.grant()
        side.prefilled()
        side.land()
        side.reserving()
        assert (side.sent, side.posts(), side.giver.num_late) == ([], [], 1)

    def test_a_prompt_of_another_length_is_refused(self) -> None:
        side = Side()
        side.grant()
        side.reserving(num_tokens=4)
        reason = "the taker means another prompt: it has 4 tokens, the giver's has 3"
        assert side.sent == [Fail(transfer_id="t", rank=0, reason=reason)]
        assert side.settled() == [1]

    @pytest.mark.parametrize("mode", TransferMode)
    @pytest.mark.parametrize("first", ["grant", "reserving"])
    def test_another_prompt_of_the_same_length_is_refused(self, mode: TransferMode, first: str) -> None:
        side = Side(mode)
        if first == "reserving":
            side.reserving(prompt=b"of another")
        side.grant(num_final_tokens=2)
        side.prefilled()
        if first == "grant":
            side.reserving(prompt=b"of another")
        reason = "the taker means another prompt: it has 3 tokens, the giver's has 3"
        assert side.sent == [Fail(transfer_id="t", rank=0, reason=reason)]
        assert (side.posts(), side.settled(), side.giver.failures) == ([], [1], {"prompt differs": 1})

    @pytest.mark.parametrize("first", ["grant", "reserving"])
    def test_a_mode_that_this_engine_does_not_do_is_refused(self, first: str) -> None:
        side = Side(PULL)
        del side.giver._connectors[PULL]  # type: ignore[attr-defined]
        if first == "grant":
            side.grant()
        side.reserving()
        reason = "the taker wants to pull, and the giver works by push"
        assert side.sent == [Fail(transfer_id="t", rank=0, reason=reason)]
        assert (side.settled(), side.giver.failures) == ([1] if first == "grant" else [], {"transfer mode": 1})


class TestLosses:
    def test_what_failed_or_expired_is_told_once_with_the_reason(self) -> None:
        side = Side()
        side.grant()
        side.prefilled()
        side.tick(LEASE_S)
        assert side.giver.losses == [("t", "its lease of 4 s ended, and nobody had taken it")]
        side.reserving()
        assert len(side.giver.losses) == 1

    def test_what_was_sent_is_no_loss(self) -> None:
        side = Side()
        side.reserving()
        side.grant()
        side.prefilled()
        side.land()
        assert side.giver.losses == []

    def test_nothing_is_posted_behind_the_fence(self) -> None:
        side = Side()
        side.reserving()
        side.grant()
        side.fence("this engine paused for 6.0 s")
        side.prefilled()
        reason = "cannot post: this engine paused for 6.0 s"
        assert (side.posts(), side.sent) == ([], [Fail(transfer_id="t", rank=0, reason=reason)])
        assert (side.settled(), side.giver.losses) == ([1], [("t", reason)])


class TestPull:
    def test_prefilled_and_reserved_to_offered(self) -> None:
        side = Side(PULL)
        side.reserving()
        side.grant()
        side.progress(2)
        assert side.sent == []
        side.prefilled()
        (offer,) = side.sent
        assert isinstance(offer, Offer)
        assert (offer.block_ids, offer.num_tokens, offer.first_tokens) == ((0, 1), 3, TOKEN)
        assert side.settled() == []

    def test_offered_taken_settles(self) -> None:
        side = Side(PULL)
        side.grant()
        side.prefilled()
        side.reserving()
        side.hear(Taken(transfer_id="t"))
        assert side.settled() == [1]

    def test_offered_reserving_again_is_answered_again(self) -> None:
        side = Side(PULL)
        side.grant()
        side.prefilled()
        side.reserving()
        side.reserving()
        assert [type(message) for message in side.sent] == [Offer, Offer]

    def test_offered_reserving_begins_a_new_lease(self) -> None:
        """The taker counts it from there: nothing that it sent before is known to have renewed the old one."""
        side = Side(PULL)
        side.grant()
        side.prefilled()
        side.tick(LEASE_S - 1)
        side.reserving()
        side.tick(LEASE_S - 1)
        assert side.settled() == []
        side.tick(1)
        assert (side.settled(), side.sent[-1]) == ([1], Expired(transfer_id="t"))

    def test_offered_taker_lost_keeps_the_lease(self) -> None:
        """It may be reading, and its own clock gives it until then."""
        side = Side(PULL)
        side.grant()
        side.prefilled()
        side.reserving()
        side.giver.taker_lost("taker-0", "silent")
        assert side.settled() == []
        side.tick(LEASE_S)
        assert side.settled() == [1]
