"""Random schedules: nothing leaks, nobody starves, every sequence ends once with the tokens of an unhurried run."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from baton.cache.pool import BlockPool
from baton.core.request import FinishReason
from tests.sched.driver import Driver, Setup, expected, maybe_resumed, random_request, random_setup, run_random

FAST, BULK = range(400), range(400, 10_400)


def test_random_schedules() -> None:
    drivers = [run_random(seed) for seed in FAST]
    stats = [driver.scheduler.stats() for driver in drivers]
    # The seeds do reach what they are meant to test.
    assert sum(s.num_preemptions for s in stats) > 100
    assert sum(s.prefix_hit_tokens for s in stats) > 500
    resumed = [r for driver in drivers for r in driver.requests.values() if r.resumed]
    assert len(resumed) > 200
    reasons = [outcome.reason for driver in drivers for outcome in driver.outcomes.values()]
    for reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT):
        assert reasons.count(reason) > 50


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_random_schedules(part: int) -> None:
    for seed in BULK[part::10]:
        run_random(seed)


@pytest.mark.parametrize("seed", range(30))
def test_the_oracle_is_the_unhurried_run(seed: int) -> None:
    """One request at a time, alone in a large pool, with no step ahead: what all other tests compare with."""
    rng = Random(seed)
    driver = Driver(Setup(block_tokens=64, num_blocks=8, max_num_seqs=1, budget=512, max_model_len=24, eos_rate=0.1))
    for number in range(4):
        request = random_request(rng, f"r{number}", 24)
        driver.add(request)
        while driver.scheduler.has_work():
            driver.schedule()
            driver.commit()
        for index in range(request.params.n):
            outcome = driver.outcomes[request.request_id, index]
            want = expected(driver, request, index)
            assert (outcome.tokens, outcome.reason, outcome.stop_token_id) == want


def _forget_steps(self: BlockPool, blocks: Iterable[int], step: int) -> None:
    """A pool that does not know which steps use its blocks: the fence is off."""


def _failures(*, watch_blocks: bool) -> list[str]:
    failures = []
    for seed in range(60):
        try:
            run_random(seed, watch_blocks=watch_blocks)
        except AssertionError as error:
            failures.append(str(error))
    return failures


def test_without_the_fence_blocks_change_hands_while_a_step_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _failures(watch_blocks=True) == []
    monkeypatch.setattr(BlockPool, "touch", _forget_steps)
    failures = _failures(watch_blocks=True)
    assert failures and all("handed out while step" in failure for failure in failures)


def test_without_the_fence_steps_find_the_networks_data(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _failures(watch_blocks=False) == []
    monkeypatch.setattr(BlockPool, "touch", _forget_steps)
    failures = _failures(watch_blocks=False)
    assert failures and all("holds" in failure and "not" in failure for failure in failures)


class ScheduleMachine(RuleBasedStateMachine):
    """Hypothesis chooses the events, and shrinks what fails."""

    @initialize(seed=st.integers(0, 2**16), depth=st.integers(1, 2))
    def start(self, seed: int, depth: int) -> None:
        self.driver = Driver(random_setup(Random(seed), depth))
        self.arrivals = 0

    @precondition(lambda self: self.arrivals < 8)
    @rule(seed=st.integers(0, 2**16))
    def add(self, seed: int) -> None:
        request = random_request(Random(seed), f"r{self.arrivals}", self.driver.setup.max_model_len)
        self.driver.add(maybe_resumed(self.driver, request, Random(seed)))
        self.arrivals += 1

    @precondition(lambda self: self.arrivals > 0)
    @rule(arrival=st.integers(0, 7), index=st.sampled_from((None, 0, 1, 2)))
    def abort(self, arrival: int, index: int | None) -> None:
        self.driver.finish(f"r{arrival % self.arrivals}", index)

    @rule()
    def schedule(self) -> None:
        self.driver.schedule()

    @rule()
    def commit(self) -> None:
        self.driver.commit()

    @rule()
    def round(self) -> None:
        self.driver.schedule()
        self.driver.commit()

    @rule(count=st.integers(1, 4))
    def network_takes(self, count: int) -> None:
        self.driver.network_takes(count)

    @rule()
    def network_frees(self) -> None:
        self.driver.network_frees()

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "driver"):
            self.driver.check()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.drain()


ScheduleMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestScheduleMachine = ScheduleMachine.TestCase
