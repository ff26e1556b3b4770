"""The states of Nygard's circuit breaker (Release It!, 2007): closed, open, half-open."""

from __future__ import annotations

import pytest

from baton.router.breaker import Breaker, BreakerState
from baton.router.worker import Outcome

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def fail(breaker: Breaker, now: float, times: int = 1) -> None:
    for _ in range(times):
        breaker.end(Outcome.FAILED, now, decides=breaker.begin(now))


def opened() -> Breaker:
    """Open from moment 10 until 15."""
    breaker = Breaker(max_failures=3, open_s=5)
    fail(breaker, 10, times=3)
    return breaker


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    breaker = Breaker(max_failures=3, open_s=5)
    fail(breaker, 0, times=2)
    assert breaker.state(0) is CLOSED and breaker.admits(0)
    fail(breaker, 10)
    assert breaker.state(10) is OPEN and not breaker.admits(14.9)
    assert breaker.opens_until_s == 15


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.REFUSED, Outcome.BUSY])
def test_an_answer_between_failures_starts_the_count_anew(outcome: Outcome) -> None:
    breaker = Breaker(max_failures=3, open_s=5)
    fail(breaker, 0, times=2)
    breaker.end(outcome, 0, decides=breaker.begin(0))
    fail(breaker, 0, times=2)
    assert breaker.state(0) is CLOSED


def test_what_was_given_up_counts_neither_way() -> None:
    breaker = Breaker(max_failures=3, open_s=5)
    fail(breaker, 0, times=2)
    breaker.end(Outcome.CANCELLED, 0, decides=breaker.begin(0))
    fail(breaker, 0)
    assert breaker.state(0) is OPEN


def test_half_open_lets_one_through_and_closes_when_that_is_answered() -> None:
    breaker = opened()
    assert breaker.state(15) is HALF_OPEN and breaker.admits(15)
    decides = breaker.begin(15)
    assert decides and not breaker.admits(15.1)
    assert not breaker.begin(15.1)  # one that comes all the same decides nothing
    breaker.end(Outcome.REFUSED, 16, decides=decides)
    assert breaker.state(16) is CLOSED and breaker.admits(16)


def test_half_open_opens_again_when_that_fails() -> None:
    breaker = opened()
    breaker.end(Outcome.FAILED, 16, decides=breaker.begin(15))
    assert breaker.state(20.9) is OPEN and breaker.state(21) is HALF_OPEN


def test_when_that_is_given_up_another_may_try() -> None:
    breaker = opened()
    breaker.end(Outcome.CANCELLED, 16, decides=breaker.begin(15))
    assert breaker.state(16) is HALF_OPEN and breaker.admits(16)


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.FAILED])
def test_requests_from_before_it_opened_decide_nothing(outcome: Outcome) -> None:
    breaker = Breaker(max_failures=1, open_s=5)
    early = breaker.begin(9)
    fail(breaker, 10)
    breaker.end(outcome, 14, decides=early)
    assert breaker.opens_until_s == 15
