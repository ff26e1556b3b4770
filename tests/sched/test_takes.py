"""The decode side of a hand-off: what is reserved and when, what landing starts, and what every failure leaves."""

from __future__ import annotations

import pytest

from baton.core.exchange import Command, Expect, Failed, FirstToken, Forgo, Landed, Reserve, Settled
from baton.core.handoff import FailurePolicy, TransferMode, prompt_digest
from baton.core.request import FinishReason, Request
from baton.core.step import Step
from baton.engine.stub_runner import StubRunner
from tests.sched.driver import VOCAB, Driver, Setup, make_request, step_of
from tests.sched.pair import SOURCE, taking


class Taker(Driver):
    """The test is the transfer thread: something may always come from it."""

    def waits(self) -> bool:
        return True

    def told(self) -> list[Command]:
        """Commands since the last call."""
        return self.scheduler.take_commands()

    def reserved(self) -> Reserve:
        """The one reservation among the commands since the last call."""
        (reserve,) = [command for command in self.told() if isinstance(command, Reserve)]
        return reserve

    def land(self, reserve: Reserve, count: int = 9, settle: bool = True) -> None:
        """The KV of the prompt comes, with up to `count` first tokens."""
        (request,) = [each for each in self.requests.values() if f"t-{each.request_id}" == reserve.transfer_id]
        values, salt = _kv(request, self.setup.block_tokens)
        self.runner.write_tokens(reserve.block_ids, 0, values[reserve.num_cached_tokens :], salt)
        tokens = [self.runner.continuation(request, index, 1)[0] for index in range(request.params.n)]
        first_tokens = tuple(FirstToken(index=i, token_id=token) for i, token in enumerate(tokens))[:count]
        self.take(self.scheduler.on_event(Landed(transfer_id=reserve.transfer_id, first_tokens=first_tokens)))
        self.check()
        if settle:
            self.scheduler.on_event(Settled(pin=reserve.pin))

    def fail(self, request_id: str, *, refused: bool = False) -> None:
        """The transfer fails."""
        self.take(self.scheduler.on_event(Failed(transfer_id=f"t-{request_id}", reason="broken", refused=refused)))
        self.check()


def _kv(request: Request, block_tokens: int) -> tuple[list[int], int]:
    """What a prefill of the prompt leaves in a runner of its own."""
    run = Driver(Setup(block_tokens=block_tokens, num_blocks=16, max_model_len=64, budget=64))
    run.add(request_alone(request))
    step = step_of(run)
    run.commit()
    return run.runner.read_tokens(step.admissions[0].block_ids, 0, len(request.prompt_token_ids))


def request_alone(request: Request) -> Request:
    return make_request("alone", len(request.prompt_token_ids), request.prompt_token_ids[0], max_tokens=1)


def driver(**sizes: object) -> Taker:
    return Taker(Setup(**{"eos_rate": 0.0, "budget": 64, "handoff": FailurePolicy.RECOMPUTE, **sizes}))  # type: ignore[arg-type]


def takes(request_id: str, prompt: int, first: int = 0, priority: int = 0, **params: object) -> Request:
    return taking(make_request(request_id, prompt, first, priority, **params), f"t-{request_id}")


def now(run: Taker) -> None:
    """Plan a step and commit it."""
    assert run.schedule()
    run.commit()
    run.check()


def test_a_request_expects_reserves_lands_and_decodes_without_prefill() -> None:
    run = driver()
    run.add(takes("r", 10, max_tokens=4))
    assert run.told() == [Expect(transfer_id="t-r", source=SOURCE, mode=TransferMode.PUSH)]
    assert not run.schedule() and run.scheduler.stalled
    stats = run.scheduler.stats()
    assert (stats.num_reserved, stats.num_waiting, stats.num_running, stats.pinned_blocks) == (1, 0, 0, 3)
    reserve = run.reserved()
    assert reserve == Reserve(
        pin=0,
        transfer_id="t-r",
        source=SOURCE,
        block_ids=(0, 1, 2),
        num_tokens=10,
        prompt_digest=prompt_digest(run.requests["r"].prompt_token_ids),
        num_cached_tokens=0,
    )
    run.land(reserve)
    assert len(run.outcomes["r", 0].tokens) == 1 and not run.scheduler.stalled
    step = step_of(run)
    assert [(chunk.start, chunk.num_tokens) for chunk in step.chunks] == [(10, 1)]
    assert len(step.admissions[0].token_ids) == 11
    run.drain()  # compares with the continuation


def test_landed_blocks_are_found_by_others() -> None:
    run = driver()
    run.add(takes("r", 10, max_tokens=4))
    run.schedule()
    run.land(run.reserved(), settle=True)
    run.add(make_request("other", 10, max_tokens=2))
    assert (10, 1) in [(c.start, c.num_tokens) for c in step_of(run).chunks] and run.outcomes["r", 0].tokens
    assert run.scheduler.stats().prefix_hit_tokens == 8
    run.drain()


@pytest.mark.parametrize(("prompt", "blocks", "cached"), [(8, 0, 8), (10, 1, 8), (16, 2, 8)])
def test_what_is_here_is_not_asked_for(prompt: int, blocks: int, cached: int) -> None:
    run = driver()
    run.add(make_request("before", 8, max_tokens=1))
    now(run)
    run.add(takes("r", prompt, max_tokens=3))
    run.schedule()
    reserve = run.reserved()
    assert (len(reserve.block_ids), reserve.num_cached_tokens) == (blocks, cached)
    run.land(reserve)
    assert run.outcomes["r", 0].num_cached == {cached}
    run.drain()


def test_reservations_need_no_budget_and_hold_nobody_back() -> None:
    run = driver(budget=4)
    run.add(make_request("busy", 4))
    run.add(takes("r", 8, first=20))
    run.add(takes("s", 8, first=40))
    run.add(make_request("late", 4, first=60))
    step = step_of(run)
    assert [admission.request.request_id for admission in step.admissions] == ["busy"]
    assert run.scheduler.stats().num_reserved == 2
    run.commit()
    assert "late" in [admission.request.request_id for admission in step_of(run).admissions]
    for request_id in ("r", "s"):
        run.fail(request_id)
    for pin in (0, 1):
        run.scheduler.on_event(Settled(pin=pin))
    run.drain()


def test_a_reservation_leaves_a_block_for_each_that_runs_or_is_reserved() -> None:
    run = driver(num_blocks=8, max_model_len=32)
    run.add(make_request("running", 5, max_tokens=9))  # two blocks
    now(run)
    run.add(takes("r", 17, first=20))  # five of the six that are left
    run.add(takes("s", 4, first=60))  # no block would be left for "running" and "r"
    run.schedule()
    assert [c.transfer_id for c in run.told() if isinstance(c, Reserve)] == ["t-r"]
    run.finish("running")
    run.commit()
    run.schedule()
    reserve = run.reserved()
    assert reserve.transfer_id == "t-s"
    for pin, request_id in enumerate("rs"):
        run.finish(request_id)
        run.scheduler.on_event(Settled(pin=pin))
    run.drain()


def test_alone_a_reservation_may_take_every_block() -> None:
    run = driver(num_blocks=4, max_model_len=16)
    run.add(takes("r", 15, max_tokens=1))
    run.schedule()
    run.land(run.reserved())
    assert run.outcomes["r", 0].reason is FinishReason.LENGTH and not run.scheduler.has_work()
    run.drain()


def test_what_is_reserved_is_no_victim() -> None:
    run = driver(num_blocks=5, max_model_len=20)
    run.add(make_request("running", 7, max_tokens=9))
    now(run)
    run.add(takes("r", 5, first=20, priority=5, max_tokens=3))
    for _ in range(6):
        if run.schedule():
            run.commit()
    stats = run.scheduler.stats()
    assert stats.num_reserved == 1
    run.land(run.reserved())
    run.drain()


def test_siblings_fork_from_what_landed_in_the_step_that_starts_it() -> None:
    run = driver()
    run.add(takes("r", 10, n=3, max_tokens=4))
    run.schedule()
    run.land(run.reserved())
    assert all(len(run.outcomes["r", index].tokens) == 1 for index in range(3))
    step = step_of(run)
    assert [(c.slot, c.start) for c in step.chunks] == [(0, 10)]
    assert [(a.index, a.block_ids[:2]) for a in step.admissions] == [(0, (0, 1)), (1, (0, 1)), (2, (0, 1))]
    assert [source for source, _ in step.copies] == [2, 2]
    assert [(c.slot, c.start) for c in _next(run).chunks] == [(0, 11), (1, 10), (2, 10)]
    run.drain()


def _next(run: Taker) -> Step:
    run.commit()
    return step_of(run)


def test_a_sibling_takes_over_what_landed_when_the_first_ends_by_its_first_token() -> None:
    run = driver()
    request = takes("r", 10, n=3, max_tokens=4)
    stop = StubRunner(4, VOCAB).continuation(request, 0, 1)[0]
    run.add(takes("r", 10, n=3, max_tokens=4, stop_token_ids=(stop,)))
    run.schedule()
    run.land(run.reserved())
    assert run.outcomes["r", 0].reason is FinishReason.STOP
    step = step_of(run)
    assert all(chunk.start == 10 for chunk in step.chunks) and step.chunks
    run.drain()


@pytest.mark.parametrize("count", [0, 1, 2])
def test_siblings_whose_first_token_did_not_come_sample_it_here(count: int) -> None:
    run = driver()
    run.add(takes("r", 10, n=3, max_tokens=4))
    run.schedule()
    run.land(run.reserved(), count)
    assert [len(run.outcomes["r", index].tokens) for index in range(3)] == [1] * count + [0] * (3 - count)
    run.drain()


def test_a_first_token_without_the_logprobs_asked_for_is_sampled_here() -> None:
    run = driver()
    run.add(takes("r", 10, max_tokens=3, logprobs=1))
    run.schedule()
    run.land(run.reserved())
    assert run.outcomes["r", 0].tokens == []
    run.drain()  # the driver checks the delivered logprobs


def test_siblings_without_a_slot_queue_with_their_first_token() -> None:
    run = driver(max_num_seqs=2)
    run.add(takes("r", 10, n=3, max_tokens=4))
    run.schedule()
    run.land(run.reserved())
    assert len(step_of(run).admissions) == 2
    run.drain()


@pytest.mark.parametrize("index", [None, 0, 1])
@pytest.mark.parametrize("state", ["waiting", "reserved", "landed", "running"])
def test_an_abort_in_any_state(state: str, index: int | None) -> None:
    run = driver()
    run.add(takes("r", 10, n=2, max_tokens=4))
    reserve = None
    if state != "waiting":
        run.schedule()
        reserve = run.reserved()
        if state != "reserved":
            run.land(reserve, settle=False)
        if state == "running":
            assert run.schedule()
    run.told()
    run.finish("r", index)
    run.check()
    wanted = [Forgo(transfer_id="t-r")] if index is None and state in ("waiting", "reserved") else []
    assert run.told() == wanted
    if index is None:
        assert run.scheduler.stats().pinned_blocks == (0 if state == "waiting" else 3)
    elif state == "waiting":
        run.schedule()
        reserve = run.reserved()
    if index is not None and state in ("waiting", "reserved"):
        assert reserve is not None
        run.land(reserve, settle=False)
    if reserve is not None:
        run.scheduler.on_event(Settled(pin=reserve.pin))
    run.drain()


@pytest.mark.parametrize("state", ["waiting", "reserved"])
def test_a_failure_falls_back_to_a_prefill_here_in_the_same_place(state: str) -> None:
    run = driver(max_num_seqs=1)
    run.add(make_request("before", 3, first=50, max_tokens=1 if state == "reserved" else 3))
    now(run)
    run.add(takes("r", 10, n=2, max_tokens=3))
    run.add(make_request("after", 4, first=70, max_tokens=2))
    run.schedule()
    assert run.scheduler.stats().num_reserved == (state == "reserved")
    late = Landed(transfer_id="t-r", first_tokens=(FirstToken(index=0, token_id=1),))
    run.fail("r")
    stats = run.scheduler.stats()
    assert (stats.num_fallbacks, stats.num_reserved, stats.pinned_blocks) == (1, 0, 3 * (state == "reserved"))
    assert run.scheduler.on_event(late) == []  # nobody waits for it
    while not run.outcomes["r", 0].tokens:
        run.schedule()
        run.commit()
    assert run.outcomes["after", 0].tokens == []
    if state == "reserved":
        run.scheduler.on_event(Settled(pin=0))
    run.drain()
    assert Forgo(transfer_id="t-r") not in run.told()


@pytest.mark.parametrize(("policy", "refused"), [(FailurePolicy.FAIL, False), (FailurePolicy.RECOMPUTE, True)])
@pytest.mark.parametrize("state", ["waiting", "reserved"])
def test_a_failure_that_ends_the_request_says_why(state: str, policy: FailurePolicy, refused: bool) -> None:
    run = driver(handoff=policy)
    run.add(takes("r", 10, n=3, max_tokens=3))
    run.finish("r", 2)
    if state == "reserved":
        run.schedule()
    run.fail("r", refused=refused)
    ends = [run.outcomes["r", index] for index in range(3)]
    assert [(end.reason, end.error) for end in ends] == [
        (FinishReason.ERROR, "broken"),
        (FinishReason.ERROR, "broken"),
        (FinishReason.ABORT, None),
    ]
    assert not run.scheduler.has_work() and run.scheduler.stats().num_fallbacks == 0
    assert not any(isinstance(command, Forgo) for command in run.told())
    if state == "reserved":
        assert run.scheduler.stats().used_blocks == 3
        run.scheduler.on_event(Settled(pin=0))
    run.drain()


def test_a_landed_sequence_that_is_preempted_recomputes_here() -> None:
    run = driver(num_blocks=4, max_model_len=16)
    run.add(make_request("first", 4, max_tokens=9))
    now(run)
    run.add(takes("r", 4, first=20, max_tokens=5))
    run.schedule()
    run.commit()
    reserve = run.reserved()
    run.land(reserve)
    for _ in range(9):
        run.schedule()
        run.commit()
    assert run.scheduler.stats().num_preemptions >= 1
    run.drain()
