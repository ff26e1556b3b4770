"""The prefill side of a hand-off: what the transfer thread is told, when, and what stays pinned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.core.errors import RequestError
from baton.core.exchange import (
    Announce,
    Command,
    FirstToken,
    Grant,
    Landed,
    Prefilled,
    Progress,
    Settled,
    Withdraw,
)
from baton.core.handoff import FailurePolicy, Ticket, prompt_digest
from baton.core.request import FinishReason, Request
from tests.sched.driver import Driver, Setup, make_request
from tests.sched.pair import giving


class Giver(Driver):
    """The test is the transfer thread: something may always come from it."""

    def waits(self) -> bool:
        return True


def driver(**sizes: object) -> Giver:
    return Giver(Setup(**{"eos_rate": 0.0, "budget": 64, "handoff": FailurePolicy.RECOMPUTE, **sizes}))  # type: ignore[arg-type]


def gives(request_id: str, prompt: int, first: int = 0, priority: int = 0, **params: object) -> Request:
    return giving(make_request(request_id, prompt, first, priority, **params), f"t-{request_id}")


def told(run: Driver) -> list[Command]:
    return run.scheduler.take_commands()


def kinds(run: Driver) -> list[str]:
    return [type(command).__name__ for command in told(run)]


def now(run: Driver) -> None:
    """Plan a step and commit it."""
    assert run.schedule()
    run.commit()
    run.check()


def end(run: Driver, *pins: int) -> None:
    """Settle, and run to the end: nothing is left."""
    for pin in pins:
        run.scheduler.on_event(Settled(pin=pin))
    run.drain()


def test_a_prompt_is_granted_told_chunk_by_chunk_and_kept_for_the_taker() -> None:
    run = driver(budget=5)
    run.add(gives("r", 11, logprobs=0))
    assert told(run) == [Announce(transfer_id="t-r")]
    now(run)
    assert told(run) == [
        Grant(
            pin=0,
            transfer_id="t-r",
            block_ids=(0, 1, 2),
            num_tokens=11,
            prompt_digest=prompt_digest(run.requests["r"].prompt_token_ids),
        ),
        Progress(transfer_id="t-r", num_final_tokens=5),
    ]
    now(run)
    assert told(run) == [Progress(transfer_id="t-r", num_final_tokens=10)]
    now(run)
    (prefilled,) = told(run)
    token = run.runner.continuation(run.requests["r"], 0, 1)[0]
    assert isinstance(prefilled, Prefilled)
    assert [(first.index, first.token_id) for first in prefilled.first_tokens] == [(0, token)]
    assert prefilled.first_tokens[0].logprobs is not None
    outcome = run.outcomes["r", 0]
    assert (outcome.tokens, outcome.reason) == ([token], FinishReason.LENGTH)
    assert outcome.ticket == Ticket(transfer_id="t-r", num_tokens=11, block_ids=(0, 1, 2))
    assert not run.scheduler.has_work()
    assert (run.scheduler.stats().pinned_blocks, run.scheduler.stats().used_blocks) == (3, 3)
    run.check()
    end(run, 0)


def test_only_blocks_of_the_prompt_and_a_prefix_hit_is_final_at_once() -> None:
    run = driver()
    run.add(make_request("before", 8, max_tokens=1))
    now(run)
    run.add(gives("r", 9))
    now(run)
    _, grant, prefilled = told(run)
    assert isinstance(grant, Grant) and (grant.block_ids, grant.num_final_tokens) == ((0, 1, 2), 8)
    assert isinstance(prefilled, Prefilled)  # the last piece needs no word of its own
    end(run, 0)


def test_progress_counts_committed_steps_only() -> None:
    run = driver(budget=4, depth=3)
    run.add(gives("r", 12))
    for _ in range(3):
        assert run.schedule()
    assert kinds(run) == ["Announce", "Grant"]
    for _ in range(3):
        run.commit()
    assert kinds(run) == ["Progress", "Progress", "Prefilled"]
    end(run, 0)


def test_all_first_tokens_of_siblings_go_along() -> None:
    run = driver()
    run.add(gives("r", 6, n=3))
    now(run)
    prefilled = told(run)[-1]
    assert isinstance(prefilled, Prefilled)
    tokens = [run.runner.continuation(run.requests["r"], index, 1)[0] for index in range(3)]
    assert prefilled.first_tokens == tuple(FirstToken(index=i, token_id=token) for i, token in enumerate(tokens))
    assert [run.outcomes["r", index].ticket is not None for index in range(3)] == [True, False, False]
    end(run, 0)


def test_a_sibling_that_must_queue_is_left_out() -> None:
    """Its turn may need the very blocks that are pinned until the transfer has all first tokens."""
    run = driver(max_num_seqs=1)
    run.add(gives("r", 6, n=2))
    now(run)
    prefilled = told(run)[-1]
    assert isinstance(prefilled, Prefilled) and [first.index for first in prefilled.first_tokens] == [0]
    now(run)
    assert run.outcomes["r", 1].tokens and told(run) == []
    end(run, 0)


def test_an_aborted_sibling_is_left_out() -> None:
    run = driver()
    run.add(gives("r", 6, n=2))
    assert run.schedule()
    run.finish("r", 1)
    run.commit()
    prefilled = told(run)[-1]
    assert isinstance(prefilled, Prefilled) and [first.index for first in prefilled.first_tokens] == [0]
    end(run, 0)


def test_the_grant_outlives_its_first_sequence_once_its_prompt_is_planned() -> None:
    run = driver()
    run.add(gives("r", 6, n=2))
    assert run.schedule()
    run.finish("r", 0)
    run.commit()
    *_, prefilled = told(run)
    assert isinstance(prefilled, Prefilled) and [first.index for first in prefilled.first_tokens] == [1]
    end(run, 0)


def test_a_sibling_that_takes_over_in_prefill_grants_anew() -> None:
    run = driver(budget=4)
    run.add(gives("r", 9, n=2))
    now(run)
    told(run)
    run.finish("r", 0)
    (withdraw,) = told(run)
    assert isinstance(withdraw, Withdraw) and withdraw.again
    now(run)
    grant = told(run)[0]
    assert isinstance(grant, Grant) and (grant.pin, grant.transfer_id, grant.num_final_tokens) == (1, "t-r", 4)
    end(run, 0, 1)


def test_preemption_withdraws_and_the_next_admission_grants_anew() -> None:
    run = driver(num_blocks=5, max_model_len=20, budget=6)
    run.add(make_request("first", 4, max_tokens=9))
    run.add(gives("r", 14, first=20))  # four blocks: the pool is full
    now(run)
    assert kinds(run) == ["Announce", "Grant", "Progress"]
    assert not run.schedule()  # "first" needs a block and "r" gives way, but the transfer still holds its blocks
    (withdraw,) = told(run)
    assert isinstance(withdraw, Withdraw) and withdraw.again
    stats = run.scheduler.stats()
    assert (stats.num_preemptions, stats.pinned_blocks, stats.num_running) == (1, 4, 1)
    assert not run.schedule() and run.scheduler.stalled
    run.scheduler.on_event(Settled(pin=0))
    now(run)
    assert run.scheduler.stats().num_preemptions == 1
    run.finish("first")
    now(run)
    grant = told(run)[0]
    assert isinstance(grant, Grant) and (grant.pin, grant.transfer_id) == (1, "t-r")
    end(run, 1)


def test_blocks_of_a_withdrawn_transfer_are_waited_for_and_cost_no_further_victim() -> None:
    run = driver(num_blocks=7, max_model_len=28, budget=9)
    run.add(make_request("first", 4, max_tokens=9))
    run.add(make_request("second", 3, first=10, max_tokens=9))
    run.add(gives("r", 17, first=20, priority=1))
    now(run)
    now(run)  # the last free block is gone to "first" ... and "second" needs none yet
    stats = run.scheduler.stats()
    assert (stats.num_preemptions, stats.num_running, stats.pinned_blocks) == (1, 2, 5)
    assert [command.again for command in told(run) if isinstance(command, Withdraw)] == [True]
    run.finish("r")
    end(run, 0)


@pytest.mark.parametrize("when", ["queued", "in prefill", "sampling", "preempted"])
def test_an_abort_before_the_first_token_withdraws_for_good(when: str) -> None:
    run = driver(budget=6, num_blocks=5, max_model_len=20)
    if when == "preempted":
        run.add(make_request("first", 4, max_tokens=9))
    run.add(gives("r", 6 if when == "sampling" else 14, first=20))
    if when != "queued":
        assert run.schedule()
    if when in ("in prefill", "preempted"):
        run.commit()
    if when == "preempted":
        assert not run.schedule() and run.scheduler.stats().num_preemptions == 1
    pins = [command.pin for command in told(run) if isinstance(command, Grant)]
    run.finish("r")
    (withdraw,) = told(run)
    assert withdraw == Withdraw(transfer_id="t-r", reason="the request was aborted at the giver")
    end(run, *pins)


def test_a_first_token_that_cannot_be_ends_the_transfer_with_its_reason() -> None:
    run = driver()
    run.add(gives("r", 6))
    assert run.schedule()
    step = run.queue.popleft().step
    result = replace(run.runner.execute(step), failed=frozenset({0}))
    (delta,) = run.scheduler.commit(step, result)
    assert (delta.finish_reason, delta.ticket) == (FinishReason.ERROR, None)
    withdraw = told(run)[-1]
    assert isinstance(withdraw, Withdraw) and "grammar" in withdraw.reason and not withdraw.again
    run.scheduler.on_event(Settled(pin=0))
    run.check()


def test_a_transfer_that_lets_go_early_hears_no_more() -> None:
    run = driver(budget=4)
    run.add(gives("r", 9))
    now(run)
    told(run)
    run.scheduler.on_event(Settled(pin=0))
    run.drain()
    assert told(run) == []
    assert run.outcomes["r", 0].tokens


def test_a_transfer_id_is_refused_while_it_is_in_use() -> None:
    run = driver()
    run.add(gives("r", 6))
    again = giving(make_request("other", 3), "t-r")
    with pytest.raises(RequestError, match="'t-r' is in use") as refusal:
        run.scheduler.add(again)
    assert refusal.value.param == "kv_transfer_params.transfer_id"
    now(run)  # the request has ended, its blocks are still pinned
    with pytest.raises(RequestError):
        run.scheduler.add(again)
    run.scheduler.on_event(Settled(pin=0))
    run.add(again)
    now(run)
    end(run, 1)


def test_an_engine_without_peers_refuses() -> None:
    run = driver(handoff=None)
    with pytest.raises(RequestError, match="no peers"):
        run.scheduler.add(gives("r", 6))
    assert not run.scheduler.has_work()


def test_events_for_nobody() -> None:
    run = driver()
    assert run.scheduler.on_event(Landed(transfer_id="none", first_tokens=())) == []
    with pytest.raises(AssertionError, match="pin 3"):
        run.scheduler.on_event(Settled(pin=3))
