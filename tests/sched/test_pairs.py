"""Two schedulers hand over under any order of events: every token is that of one engine alone, and nothing is left.

The oracle is the stub's own continuation, as for one scheduler (`driver.check_outcome`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from baton.cache.pool import BlockPool
from baton.core.exchange import Command, Forgo, Landed, Reserve, Withdraw
from baton.core.request import FinishReason
from baton.sched.pins import Pins
from tests.sched.driver import random_request
from tests.sched.pair import Transfer, Wire, random_act, random_pair, run_pair

FAST, BULK = range(160), range(160, 8_160)


def test_random_pairs() -> None:
    pairs = [run_pair(seed) for seed in FAST]
    seen = Counter(type(command) for pair in pairs for command in pair.wire.log)
    # The seeds do reach what they are meant to test.
    assert sum(pair.wire.num_landed for pair in pairs) > 200
    assert seen[Withdraw] > 5 and seen[Forgo] > 5
    for side, least in (("giver", 2), ("taker", 20)):
        stats = [getattr(pair, side).scheduler.stats() for pair in pairs]
        assert sum(s.num_preemptions for s in stats) >= least
        assert sum(s.prefix_hit_tokens for s in stats) > 100
    assert sum(pair.taker.scheduler.stats().num_fallbacks for pair in pairs) > 20
    reserves = [command for pair in pairs for command in pair.wire.log if isinstance(command, Reserve)]
    assert any(reserve.num_cached_tokens == reserve.num_tokens for reserve in reserves)
    assert any(0 < reserve.num_cached_tokens < reserve.num_tokens for reserve in reserves)
    reasons = Counter(outcome.reason for pair in pairs for outcome in pair.taker.outcomes.values())
    assert all(reasons[reason] > 10 for reason in FinishReason)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_eight_thousand_random_pairs(part: int) -> None:
    for seed in BULK[part::8]:
        run_pair(seed)


def _failures() -> list[str]:
    failures = []
    for seed in range(60):
        try:
            run_pair(seed)
        except (AssertionError, KeyError) as error:
            failures.append(str(error))
    return failures


def test_without_pins_blocks_change_hands_under_the_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: Pins, blocks: Iterable[int]) -> int:
        return pin(self, [])

    pin = Pins.pin
    monkeypatch.setattr(Pins, "pin", forget)
    assert any("holds" in failure for failure in _failures())


def test_without_the_fence_blocks_are_lent_while_a_step_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: BlockPool, blocks: Iterable[int], step: int) -> None:
        """Which steps use its blocks."""

    monkeypatch.setattr(BlockPool, "touch", forget)
    assert any("handed out while step" in failure for failure in _failures())


def test_landing_before_the_last_piece_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def early(self: Wire, transfer_id: str, keep: int = 99) -> None:
        transfer: Transfer = self.transfers[transfer_id]
        if not transfer.over and transfer.first_tokens is not None and transfer.reserve is not None:
            transfer.over = transfer.told = True
            self.taker.events.append(Landed(transfer_id=transfer_id, first_tokens=transfer.first_tokens))

    monkeypatch.setattr(Wire, "land", early)
    assert any("holds" in failure for failure in _failures())


def test_progress_told_before_its_step_has_run_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    command = Wire._command

    def hasty(self: Wire, told: Command, transfer: Transfer) -> None:
        command(self, told, transfer)
        if transfer.grant is not None:
            transfer.final = transfer.grant.num_tokens

    monkeypatch.setattr(Wire, "_command", hasty)
    assert _failures()


class PairMachine(RuleBasedStateMachine):
    """Hypothesis chooses the events, and shrinks what fails."""

    @initialize(seed=st.integers(0, 2**16))
    def start(self, seed: int) -> None:
        self.pair = random_pair(Random(seed))
        self.arrivals = 0

    @precondition(lambda self: self.arrivals < 5)
    @rule(seed=st.integers(0, 2**16), gives=st.booleans(), takes=st.booleans())
    def add(self, seed: int, gives: bool, takes: bool) -> None:
        request = random_request(Random(seed), f"r{self.arrivals}", self.pair.giver.setup.max_model_len)
        self.pair.add(request, f"t{self.arrivals}", gives=gives or not takes, takes=takes)
        self.arrivals += 1

    @precondition(lambda self: self.arrivals > 0)
    @rule(arrival=st.integers(0, 4), index=st.sampled_from((None, 0, 1, 2)), giver=st.booleans())
    def abort(self, arrival: int, index: int | None, giver: bool) -> None:
        side = self.pair.giver if giver else self.pair.taker
        side.finish(f"r{arrival % self.arrivals}", index)

    @rule(place=st.integers(0, 4), refused=st.booleans())
    def fail(self, place: int, refused: bool) -> None:
        self.pair.wire.feed()
        names = list(self.pair.wire.transfers)
        if names:
            self.pair.wire.fail(names[place % len(names)], refused=refused)

    @rule(seed=st.integers(0, 2**16))
    def act(self, seed: int) -> None:
        random_act(self.pair, Random(seed), 0.0)

    @rule()
    def turn(self) -> None:
        self.pair.turn()

    @rule(giver=st.booleans(), count=st.integers(1, 3))
    def network_takes(self, giver: bool, count: int) -> None:
        (self.pair.giver if giver else self.pair.taker).network_takes(count)

    @rule(giver=st.booleans())
    def network_frees(self, giver: bool) -> None:
        (self.pair.giver if giver else self.pair.taker).network_frees()

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "pair"):
            self.pair.check()

    def teardown(self) -> None:
        if hasattr(self, "pair"):
            self.pair.drain()


PairMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestPairMachine = PairMachine.TestCase
