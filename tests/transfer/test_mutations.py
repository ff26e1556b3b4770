"""The model check can fail: each rule of the protocol, taken out, is found missing."""

from __future__ import annotations

import msgspec
import pytest

from baton.core.exchange import Command, Grant, Prefilled, Settled
from baton.transfer.ended import Ending
from baton.transfer.giver import Giver, GiverConfig
from baton.transfer.link import Link
from baton.transfer.taker import Taker, Taking
from baton.wire.handoff import Done, Reserving
from tests.transfer.explore import Found, cached_geometry, explore, run_random
from tests.transfer.hosts import LEASE_S, Setup
from tests.transfer.world import FAULTS, Violation, World

MOST = 3000


class LeaseEndsInFlight(Giver):
    def tick(self) -> None:
        for giving in self._givings.values():
            if giving.deadline_s is not None and giving.ending is None and self._clock() >= giving.deadline_s:
                giving.ending = Ending.EXPIRED
                self.events += [Settled(pin=pin) for pin in giving.pins]
                giving.pins.clear()
        super().tick()


class MatchesByRequest(Giver):
    def _reserving(self, link: Link, wanted: Reserving) -> None:
        request = wanted.transfer_id.split("#")[0]
        known = [each for each in self._givings if each.split("#")[0] == request]
        super()._reserving(link, msgspec.structs.replace(wanted, transfer_id=(known or [wanted.transfer_id])[0]))


class CountsRanks(Taker):
    def _done(self, taking: Taking, done: Done) -> None:
        rank = min(taking.sources - taking.delivered, default=done.rank)
        super()._done(taking, msgspec.structs.replace(done, rank=rank))


class SaysNothingWhenNotNeeded(Taker):
    def _stop(self, taking: Taking) -> None:
        if taking.link is not None and taking.reserve is None:
            self._finish(taking)
        else:
            super()._stop(taking)


class FreesOnCancel(Taker):
    def _stop(self, taking: Taking) -> None:
        taking.drained |= taking.sources
        super()._stop(taking)


class NoQuarantine(Taker):
    def giver_lost(self, engine_id: str, reason: str, *, dead: bool) -> None:
        for taking in self._takings.values():
            taking.drained |= taking.sources
        super().giver_lost(engine_id, reason, dead=dead)


class LandsAfterFailure(Taker):
    def _done(self, taking: Taking, done: Done) -> None:
        taking.failed = taking.forgone = False
        super()._done(taking, done)


class ProgressBeforeCommit(World):
    """The fence is off: a block is given to the network before the step that writes it has completed."""

    def _tell_giver(self, command: Command) -> None:
        if isinstance(command, Grant):
            command = Grant(
                pin=command.pin,
                transfer_id=command.transfer_id,
                block_ids=command.block_ids,
                num_tokens=command.num_tokens,
                num_final_tokens=max(command.num_final_tokens, self.setup.giver_tokens),
            )
        super()._tell_giver(command)


class ReusesPinnedBlocks(World):
    """The fence is off: blocks change hands when their request ends, settled or not."""

    def _end_decode(self, i: int) -> None:
        super()._end_decode(i)
        for number, (transfer, blocks, _) in self.taker.pins.items():
            if transfer == i:
                self.taker.pool.release(blocks, ("pin", i, number))


def worlds_with(giver: type[Giver] = Giver, taker: type[Taker] = Taker) -> type[World]:
    return type("Mutant", (World,), {"giver_type": giver, "taker_type": taker})


MUTANTS: dict[str, tuple[type[World], Setup]] = {
    "progress before commit": (ProgressBeforeCommit, Setup(faults=FAULTS)),
    "pinned blocks reused": (ReusesPinnedBlocks, Setup(faults=FAULTS)),
    "lease ends in flight": (worlds_with(LeaseEndsInFlight), Setup(faults=("pass",), max_faults=4)),
    "count of ranks": (worlds_with(taker=CountsRanks), Setup(faults=("twice",), ranks=2)),
    "no NotNeeded": (worlds_with(taker=SaysNothingWhenNotNeeded), Setup(faults=("forgo",))),
    "match by request": (worlds_with(MatchesByRequest), Setup(faults=FAULTS, transfers=2, attempts=True)),
    "free on Cancel": (worlds_with(taker=FreesOnCancel), Setup(faults=("forgo",))),
    "no quarantine": (worlds_with(taker=NoQuarantine), Setup(faults=("cut", "kill", "reset"))),
    "lands after failure": (worlds_with(taker=LandsAfterFailure), Setup(faults=FAULTS)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_missing_rule_is_found(name: str) -> None:
    world_type, setup = MUTANTS[name]
    with pytest.raises(Found) as found, cached_geometry():
        for count, _ in enumerate(explore(world_type, setup, 2)):
            if count >= MOST:
                break
        for seed in range(MOST):
            run_random(world_type, setup, seed)
    assert isinstance(found.value.__cause__, Violation), found.value.__cause__


class StopsAtTheFirstLiveLease(Giver):
    def tick(self) -> None:
        kept = {}
        for transfer_id, giving in self._givings.items():
            if giving.deadline_s is None or self._clock() < giving.deadline_s:
                kept = {name: each for name, each in self._givings.items() if name != transfer_id}
                break
        self._givings = {name: each for name, each in self._givings.items() if name not in kept}
        super().tick()
        self._givings |= kept


@pytest.mark.parametrize(("giver_type", "reaped"), [(Giver, True), (StopsAtTheFirstLiveLease, False)])
def test_every_lease_that_is_over_ends_whatever_stands_before_it(giver_type: type[Giver], reaped: bool) -> None:
    """The first transfer is still in prefill, the second finished longer than a lease ago."""
    world = worlds_with(giver_type)(Setup(transfers=2))
    giver = world.giver.engines[0]
    assert isinstance(giver, Giver) and GiverConfig(lease_s=LEASE_S).lease_s == LEASE_S
    giver.command(Grant(pin=1, transfer_id="r0#0", block_ids=(0, 1), num_tokens=3))
    giver.command(Grant(pin=2, transfer_id="r1#0", block_ids=(2, 3), num_tokens=3))
    giver.command(Prefilled(transfer_id="r1#0", first_tokens=()))
    world.now = LEASE_S
    giver.tick()
    assert [event.pin for event in giver.events if isinstance(event, Settled)] == ([2] if reaped else [])
