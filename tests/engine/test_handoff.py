"""Two engines without a model hand over in one process: commands, events, when there is work, and poisoned blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from baton.cache.manager import CacheManager
from baton.core.config import CacheConfig, SchedulerConfig
from baton.core.errors import EngineDeadError
from baton.core.exchange import (
    Failed,
    FirstToken,
    Grant,
    Landed,
    Prefilled,
    Progress,
    Reserve,
    Settled,
)
from baton.core.handoff import FailurePolicy, Handoff, PeerAddress
from baton.core.request import FinishReason, Request
from baton.core.sampling import SamplingParams
from baton.engine.engine import Engine
from baton.engine.executor import ThreadExecutor
from baton.engine.poison import Poison
from baton.engine.stub_runner import StubRunner
from baton.sched.scheduler import Scheduler

VOCAB = 100
PROMPT = tuple(range(40, 59))


@dataclass
class Rig:
    """An engine, its runner, and what came out of it."""

    engine: Engine
    runner: StubRunner
    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    reasons: dict[tuple[str, int], FinishReason] = field(default_factory=dict)

    def take(self, deltas: list) -> None:
        for delta in deltas:
            self.tokens.setdefault((delta.request_id, delta.index), []).extend(delta.token_ids)
            if delta.finish_reason is not None:
                self.reasons[delta.request_id, delta.index] = delta.finish_reason

    def run(self) -> None:
        """Until nothing is left that a further step could change."""
        for _ in range(200):
            if not self.engine.has_work():
                return
            self.take(self.engine.step())
        raise AssertionError("the engine never rests")


def rig(block_tokens: int, *, run_ahead: bool, poisoned: bool, num_blocks: int = 32) -> Rig:
    limits = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=8, max_model_len=64)
    cache = CacheManager(CacheConfig(block_tokens=block_tokens, num_blocks=num_blocks))
    scheduler = Scheduler(limits, cache, FailurePolicy.RECOMPUTE)
    runner = StubRunner(block_tokens, VOCAB)
    executor = ThreadExecutor(runner)
    poison = Poison(runner, executor, cache.pool) if poisoned else None
    return Rig(Engine(scheduler, executor, async_scheduling=run_ahead, poison=poison), runner)


@pytest.fixture(params=[(4, 8, False), (8, 4, True), (4, 4, True)], ids=["4-8 plain", "8-4 async", "4-4 async"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Rig, Rig]]:
    giver_tokens, taker_tokens, run_ahead = request.param
    rigs = (
        rig(giver_tokens, run_ahead=run_ahead, poisoned=True),
        rig(taker_tokens, run_ahead=run_ahead, poisoned=True),
    )
    yield rigs
    for each in rigs:
        each.engine.shutdown()


def legs(n: int = 1, max_tokens: int = 6) -> tuple[Request, Request]:
    params = SamplingParams(max_tokens=max_tokens, seed=1, n=n)
    source = PeerAddress(host="giver", port=1)
    request = Request(
        request_id="r",
        prompt_token_ids=PROMPT,
        params=replace(params, max_tokens=1),
        handoff=Handoff(transfer_id="t"),
    )
    return request, replace(request, params=params, handoff=Handoff(transfer_id="t", source=source))


def prefill(giver: Rig) -> tuple[Grant, tuple[FirstToken, ...], list[int]]:
    """Run the prefill leg. Returns the grant, the first tokens, and every count of final tokens that was told."""
    giver.run()
    commands = giver.engine.commands()
    (grant,) = [command for command in commands if isinstance(command, Grant)]
    (prefilled,) = [command for command in commands if isinstance(command, Prefilled)]
    told = [command.num_final_tokens for command in commands if isinstance(command, Progress)]
    return grant, prefilled.first_tokens, told


def carry(giver: Rig, grant: Grant, taker: Rig, reserve: Reserve, last: int) -> None:
    """The network: tokens up to `last` cross, as far as they are wanted."""
    first = reserve.num_cached_tokens
    values, salt = giver.runner.read_tokens(grant.block_ids, first, last)
    taker.runner.write_tokens(reserve.block_ids, 0, values, salt)


def reservation(taker: Rig) -> Reserve:
    taker.run()
    (reserve,) = [command for command in taker.engine.commands() if isinstance(command, Reserve)]
    return reserve


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("again", [False, True], ids=["cold", "prefix hit"])
def test_both_engines_together_yield_what_one_yields_alone(pair: tuple[Rig, Rig], n: int, again: bool) -> None:
    giver, taker = pair
    prefill_leg, decode_leg = legs(n)
    if again:  # both sides know the prompt already
        for each, tokens in ((giver, PROMPT[:9]), (taker, PROMPT[:17])):
            each.engine.add(replace(prefill_leg, request_id="before", prompt_token_ids=tokens, handoff=None))
            each.run()
    giver.engine.add(prefill_leg)
    taker.engine.add(decode_leg)
    reserve = reservation(taker)
    assert (reserve.num_cached_tokens > 0) == again
    grant, first_tokens, told = prefill(giver)
    assert told == sorted(told) and all(0 < count < len(PROMPT) for count in told)
    carry(giver, grant, taker, reserve, len(PROMPT))
    taker.take(taker.engine.deliver(Landed(transfer_id="t", first_tokens=first_tokens)))
    taker.engine.deliver(Settled(pin=reserve.pin))
    giver.engine.deliver(Settled(pin=grant.pin))
    taker.run()
    for index in range(n):
        assert taker.tokens["r", index] == taker.runner.continuation(decode_leg, index, 6)
        assert giver.tokens["r", index] == taker.tokens["r", index][:1]
    for each in pair:
        assert each.engine.stats().used_blocks == 0
        each.engine.check()


def test_an_engine_that_only_waits_for_a_peer_has_no_work(pair: tuple[Rig, Rig]) -> None:
    _, taker = pair
    taker.engine.add(legs()[1])
    assert taker.engine.has_work()
    assert taker.engine.step() == []
    assert not taker.engine.has_work()
    assert taker.engine.stats().num_reserved == 1
    assert taker.engine.deliver(Failed(transfer_id="t", reason="broken")) == []
    assert taker.engine.has_work()
    taker.run()
    assert taker.tokens["r", 0] == taker.runner.continuation(legs()[1], 0, 6)
    assert taker.engine.stats().pinned_blocks > 0
    taker.engine.deliver(Settled(pin=0))
    assert taker.engine.stats().used_blocks == 0


def test_others_run_while_one_waits_for_a_peer(pair: tuple[Rig, Rig]) -> None:
    _, taker = pair
    taker.engine.add(legs()[1])
    other = replace(legs()[1], request_id="other", handoff=None)
    taker.engine.add(other)
    taker.run()
    assert taker.reasons == {("other", 0): FinishReason.LENGTH}
    assert [delta.finish_reason for delta in taker.engine.finish("r")] == [FinishReason.ABORT]
    taker.engine.deliver(Settled(pin=0))
    taker.engine.check()


def test_a_missed_byte_is_loud(pair: tuple[Rig, Rig]) -> None:
    giver, taker = pair
    prefill_leg, decode_leg = legs()
    giver.engine.add(prefill_leg)
    taker.engine.add(decode_leg)
    reserve = reservation(taker)
    grant, first_tokens, _ = prefill(giver)
    carry(giver, grant, taker, reserve, len(PROMPT) - 1)
    with pytest.raises(EngineDeadError, match="left 1 of 19 tokens unwritten"):
        taker.engine.deliver(Landed(transfer_id="t", first_tokens=first_tokens))
    assert taker.engine.deliver(Settled(pin=reserve.pin)) == [] and not taker.engine.has_work()


def test_a_pin_that_is_settled_twice_ends_the_engine() -> None:
    alone = rig(4, run_ahead=False, poisoned=False)
    with pytest.raises(EngineDeadError, match="pin 5"):
        alone.engine.deliver(Settled(pin=5))
    alone.engine.shutdown()
