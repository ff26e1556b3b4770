"""A hand-off that is given up from outside, in every state it can be in."""

from __future__ import annotations

import pytest

from baton.core.exchange import Grant, Settled, Withdraw
from tests.sched.driver import make_request
from tests.sched.test_gives import driver, end, gives, kinds, now, told

GIVEN_UP = Withdraw(transfer_id="t-r", reason="the hand-off was given up from outside")


@pytest.mark.parametrize("when", ["queued", "in prefill", "preempted"])
def test_before_the_first_token_the_prefill_goes_on_and_nothing_is_handed_over(when: str) -> None:
    run = driver(budget=6, num_blocks=5, max_model_len=20)
    if when == "preempted":
        run.add(make_request("first", 4, max_tokens=9))
    run.add(gives("r", 14, first=20))
    if when != "queued":
        now(run)
    if when == "preempted":
        assert not run.schedule() and run.scheduler.stats().num_preemptions == 1
    pins = [command.pin for command in told(run) if isinstance(command, Grant)]
    run.scheduler.withdraw("t-r")
    assert told(run) == [GIVEN_UP]
    run.scheduler.withdraw("t-r")
    end(run, *pins)
    assert set(kinds(run)) <= {"Withdraw"}
    assert len(run.outcomes["r", 0].tokens) == 1


def test_behind_the_answer_the_transfer_thread_is_told_while_it_holds_blocks() -> None:
    run = driver()
    run.add(gives("r", 6))
    now(run)
    told(run)
    assert not run.scheduler.has_work() and run.scheduler.stats().pinned_blocks == 2
    run.scheduler.withdraw("t-r")
    assert told(run) == [GIVEN_UP] and run.scheduler.stats().pinned_blocks == 2
    run.scheduler.on_event(Settled(pin=0))
    assert run.scheduler.stats().pinned_blocks == 0
    run.scheduler.withdraw("t-r")
    assert told(run) == []
    run.check()


def test_of_several_sequences_the_others_first_tokens_are_not_waited_for() -> None:
    run = driver(max_num_seqs=1)
    run.add(gives("r", 6, n=2))
    now(run)
    run.scheduler.withdraw("t-r")
    assert told(run)[-1] == GIVEN_UP
    end(run, 0)
    assert all(len(run.outcomes["r", index].tokens) == 1 for index in range(2))


def test_others_and_unknown_transfers_are_left_alone() -> None:
    run = driver(budget=4)
    run.add(gives("r", 9))
    now(run)
    told(run)
    for other in ("t-", "r", "t-r2"):
        run.scheduler.withdraw(other)
    now(run)
    now(run)
    assert kinds(run) == ["Progress", "Prefilled"]
    end(run, 0)
