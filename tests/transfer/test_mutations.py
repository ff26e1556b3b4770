"""Each mutant breaks one rule of the protocol, and a schedule finds it, in which the real one keeps its promises."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import islice

import msgspec
import pytest

from baton.core.exchange import Grant, Landed, Progress, Settled, Withdraw
from baton.core.handoff import TransferMode
from baton.transfer.agent import Ended
from baton.transfer.ended import Ending
from baton.transfer.giver import Giver, Giving
from baton.transfer.link import Link
from baton.transfer.taker import Taker, Taking
from baton.wire.handoff import Cancel, Cancelled, Done, Expired, FromGiver, FromTaker, Gone, Reserving
from tests.transfer.explore import Found, cached_geometry, explore, play, run
from tests.transfer.hosts import Setup
from tests.transfer.world import Violation, World

PULL = TransferMode.PULL
MOST = 3000  # schedules in which a mutant is to be found


class ReusedByTaker(World):
    """The fence is off: a request that goes on without its hand-off gives its blocks away at once."""

    def _end_decode(self, i: int) -> None:
        super()._end_decode(i)
        for pin, (transfer, blocks, _) in self.taker.pins.items():
            if transfer == i:
                self.taker.pool.release(blocks, ("pin", i, pin))


class ReusedByGiver(World):
    """The fence is off: a prefill that has ended gives its blocks away at once."""

    def _end_prefill(self, i: int, stage: str) -> None:
        super()._end_prefill(i, stage)
        for pin, (transfer, blocks, _) in self.giver.pins.items():
            if transfer == i:
                self.giver.pool.release(blocks, ("pin", i, pin))


class ToldBeforeCommit(World):
    """Progress is told when a step is submitted; it writes later."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.submitted: dict[int, range] = {}

    def _step(self, i: int) -> None:
        prefill, end = self.prefills[i], self.prefills[i].computed + self.setup.giver_tokens
        if i in self.submitted:
            self.giver.pool.write(prefill.blocks, i, self.submitted.pop(i))
        elif end < self.setup.num_tokens:
            self.submitted[i], prefill.computed = range(prefill.computed, end), end
            self._tell_giver(Progress(transfer_id=self.name(i), num_final_tokens=end))
        else:
            super()._step(i)


class Freeing(Giver):
    """Can free a transfer without waiting for its posts."""

    def free(self, giving: Giving, ending: Ending) -> None:
        """At once."""
        del self._givings[giving.transfer_id]
        self._ended.add(giving.transfer_id, ending, self._clock())
        self.events += [Settled(pin=pin) for pin in giving.pins]

    def ended(self, ended: Ended) -> bool:
        """Also of transfers that are forgotten."""
        flight = self._flights._flights.get(ended.post)
        if flight is not None and flight.transfer_id not in self._givings:
            self._flights.ended(ended)
            return True
        return super().ended(ended)


class LeaseEndsInFlight(Freeing):
    """A lease does not wait for posts."""

    def tick(self) -> None:
        """See `Giver`."""
        for giving in list(self._givings.values()):
            if giving.deadline_s is not None and self._clock() >= giving.deadline_s and giving.pins:
                self.free(giving, Ending.EXPIRED)
        super().tick()


class CancelFrees(Freeing):
    """Cancelled is said before posts have drained."""

    def from_taker(self, link: Link, message: FromTaker) -> None:
        """See `Giver`."""
        giving = self._givings.get(getattr(message, "transfer_id", ""))
        if isinstance(message, Cancel) and giving is not None:
            self.free(giving, Ending.CANCELLED)
            self._control.send(link.engine_id, Cancelled(transfer_id=message.transfer_id, rank=self._config.rank))
        else:
            super().from_taker(link, message)


class ReaperStops(Giver):
    """The reaper takes transfers to be in order of their deadlines."""

    def tick(self) -> None:
        """See `Giver`."""
        for giving in list(self._givings.values()):
            if giving.deadline_s is None or self._clock() < giving.deadline_s:
                break
            giving.ending = Ending.EXPIRED
            self._finish(giving)


class LostFrees(Giver):
    """What a silent taker may still be reading is freed."""

    def taker_lost(self, engine_id: str, reason: str) -> None:
        """See `Giver`."""
        for giving in list(self._givings.values()):
            if giving.claim is not None:
                self._fail(giving, "taker lost", reason)


class GivesUpOffers(Giver):
    """What is given up is free, though a taker may be reading it."""

    def _withdraw(self, withdraw: Withdraw) -> None:
        giving = self._givings.get(withdraw.transfer_id)
        if giving is not None and not withdraw.again:
            self._fail(giving, "withdrawn", withdraw.reason)
        else:
            super()._withdraw(withdraw)


class ClaimDoesNotRenew(Giver):
    """A reservation leaves the lease as it was."""

    def _reserving(self, link: Link, wanted: Reserving) -> None:
        known = self._givings.get(wanted.transfer_id)
        deadline_s = None if known is None else known.deadline_s
        super()._reserving(link, wanted)
        if known is not None and deadline_s is not None:
            known.deadline_s = deadline_s


class ComparesLengths(Giver):
    """A prompt of the same length is taken for the same."""

    def _grant(self, grant: Grant) -> None:
        super()._grant(dataclasses.replace(grant, prompt_digest=b""))

    def _reserving(self, link: Link, wanted: Reserving) -> None:
        super()._reserving(link, msgspec.structs.replace(wanted, prompt_digest=b""))


class CountsDone(Taker):
    """As many Dones as ranks are complete, whoever sent them."""

    def _done(self, taking: Taking, done: Done) -> None:
        if taking.reserve is None or taking.stopping:
            super()._done(taking, done)
            return
        count = len(taking.digests) + 1
        taking.digests[count] = None
        taking.first_tokens = done.first_tokens
        if count == len(taking.sources):
            self._land(taking, record=None)


class SaysNotNeededNever(Taker):
    """What was never reserved is forgotten without a word."""

    def _stop(self, taking: Taking) -> None:
        if taking.link is not None and taking.reserve is None:
            self._finish(taking)
        else:
            super()._stop(taking)


class MatchesRequests(Taker):
    """What comes for one attempt of a request is taken for the current one."""

    def from_giver(self, link: Link, message: FromGiver) -> None:
        """See `Taker`."""
        for transfer_id in self._takings:
            if transfer_id.split("#")[0] == getattr(message, "transfer_id", "").split("#")[0]:
                message = msgspec.structs.replace(message, transfer_id=transfer_id)
        super().from_giver(link, message)


class AnyIncarnation(Taker):
    """Who answers at a giver's address is taken for that giver."""

    def linked(self, host: str, port: int, link: Link) -> None:
        """See `Taker`."""
        for taking in self._at(host, port):
            taking.link = taking.link or link
            taking.sources = self._connector.sources(link)
            self._resume(taking, link)


class NoQuarantine(Taker):
    """A lost giver is taken for one that cannot write any more."""

    also_silent = True

    def giver_lost(self, engine_id: str, reason: str, *, dead: bool) -> None:
        """See `Taker`."""
        for taking in list(self._takings.values()):
            if taking.link is not None and (dead or self.also_silent):
                taking.drained |= taking.sources
        super().giver_lost(engine_id, reason, dead=dead)


class NoQuarantineOfTheDead(NoQuarantine):
    """The same, of one that has ended."""

    also_silent = False


class LandsAfterFailure(Taker):
    """A Done that comes after all is used."""

    def _done(self, taking: Taking, done: Done) -> None:
        if taking.reserve is not None and taking.stopping:
            self.events.append(Landed(transfer_id=done.transfer_id, first_tokens=done.first_tokens))
        super()._done(taking, done)


class OneRankSpeaksForAll(Taker):
    """Gone and Expired, which name no rank, are taken for the word of all."""

    def from_giver(self, link: Link, message: FromGiver) -> None:
        """See `Taker`."""
        if isinstance(message, Gone | Expired) and message.transfer_id in self._takings:
            taking = self._takings[message.transfer_id]
            taking.drained |= taking.sources
        super().from_giver(link, message)


def _with(*, giver: type[Giver] = Giver, taker: type[Taker] = Taker) -> type[World]:
    name = (taker if giver is Giver else giver).__name__
    return type(name, (World,), {"giver_type": giver, "taker_type": taker})


MUTANTS: list[tuple[type[World], Setup, int, str]] = [
    # mutant, setup, changes, what is broken first
    (ReusedByTaker, Setup(taker_first=True, faults=("forgo",)), 2, "touches block"),
    (ReusedByGiver, Setup(taker_first=True), 1, "touches block"),
    (ToldBeforeCommit, Setup(taker_first=True), 1, "landed without its bytes"),
    (_with(giver=CancelFrees), Setup(taker_first=True, faults=("forgo",)), 2, "touches block"),
    (_with(giver=LostFrees), Setup(mode=PULL, faults=("cut",), max_faults=1), 3, "landed without its bytes"),
    (_with(giver=GivesUpOffers), Setup(mode=PULL, faults=("give_up",), max_faults=1), 3, "landed without its bytes"),
    (_with(giver=ComparesLengths), Setup(faults=("mistake",)), 1, "the KV of another prompt"),
    (_with(giver=ComparesLengths), Setup(mode=PULL, faults=("mistake",)), 1, "the KV of another prompt"),
    (_with(taker=CountsDone), Setup(taker_first=True, ranks=2, faults=("twice",)), 2, "landed without its bytes"),
    (_with(taker=SaysNotNeededNever), Setup(faults=("forgo",)), 1, "waits for time to pass"),
    (_with(taker=MatchesRequests), Setup(transfers=2, attempts=True, faults=("forgo",)), 2, "wrong first tokens"),
    (_with(taker=AnyIncarnation), Setup(taker_first=True, faults=("kill",)), 2, "touches block"),
    (_with(taker=NoQuarantine), Setup(taker_first=True, faults=("cut",)), 2, "touches block"),
    (_with(taker=NoQuarantineOfTheDead), Setup(taker_first=True, faults=("kill",)), 2, "touches block"),
    (_with(taker=LandsAfterFailure), Setup(taker_first=True, faults=("cut",)), 2, "'after', 'failed'"),
    (_with(taker=OneRankSpeaksForAll), Setup(ranks=2, faults=("abort",), max_faults=1), 3, "touches block"),
]

PREFILLED = "prefill 0,prefill 0,prefill 0,prefill 0"
LINKED = "decode 0,link,to_giver 0,to_taker 0"
LATER = "pass,look giver,look alive,look taker"

GIVEN: list[tuple[type[World], Setup, str, str]] = [
    # A WRITE is in flight for a lease.
    (
        _with(giver=LeaseEndsInFlight),
        Setup(),
        f"{LINKED},decode 0,to_giver 0,{PREFILLED},{LATER},{LATER}",
        "touches block",
    ),
    # Prefill 0 has only begun; nobody comes for prefill 1.
    (
        _with(giver=ReaperStops),
        Setup(transfers=2),
        f"prefill 0,prefill 1,prefill 1,prefill 1,prefill 1,{LATER},{LATER}",
        "kept for longer than a lease",
    ),
    # The taker comes shortly before the lease ends, and reads until it has ended.
    (
        _with(giver=ClaimDoesNotRenew),
        Setup(mode=PULL),
        f"{PREFILLED},{LATER},{LINKED},decode 0,to_giver 0,to_taker 0,{LATER},deliver,poll taker",
        "landed without its bytes",
    ),
]


@pytest.fixture(autouse=True, scope="module")
def _cached_geometry() -> Iterator[None]:
    with cached_geometry():
        yield


@pytest.mark.parametrize(("mutant", "setup", "changes", "broken"), MUTANTS, ids=[case[0].__name__ for case in MUTANTS])
def test_a_mutant_is_found(mutant: type[World], setup: Setup, changes: int, broken: str) -> None:
    with pytest.raises(Found) as found:
        for _ in islice(explore(mutant, setup, changes), MOST):
            pass
    assert broken in repr(found.value.__cause__)
    run(World, setup, found.value.choices)


@pytest.mark.parametrize(("mutant", "setup", "schedule", "broken"), GIVEN, ids=[case[0].__name__ for case in GIVEN])
def test_a_mutant_fails_in_a_given_schedule(mutant: type[World], setup: Setup, schedule: str, broken: str) -> None:
    with pytest.raises(Violation, match=broken):
        play(mutant(setup), schedule)
    play(World(setup), schedule)
