"""The loop on a runner without a model: failures, interrupts, shutdown, in plain and asynchronous form."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from baton.cache.manager import CacheManager
from baton.core.config import CacheConfig, SchedulerConfig
from baton.core.errors import EngineDeadError
from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.sampling import SamplingParams
from baton.core.step import Step, StepResult
from baton.engine.engine import Engine
from baton.engine.executor import ThreadExecutor
from baton.engine.stub_runner import StubRunner
from baton.sched.scheduler import Scheduler

BLOCK, VOCAB = 4, 100


class Runner(StubRunner):
    """A stub that sleeps in every step and raises in one."""

    def __init__(self, *, fails_at: int | None = None, step_s: float = 0.0) -> None:
        super().__init__(BLOCK, VOCAB)
        self._fails_at = fails_at
        self._step_s = step_s

    def execute(self, step: Step) -> StepResult:
        time.sleep(self._step_s)
        if step.number == self._fails_at:
            raise ValueError("broken device")
        return super().execute(step)


def make(runner: Runner, async_scheduling: bool) -> Engine:
    limits = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64)
    cache = CacheManager(CacheConfig(block_tokens=BLOCK, num_blocks=32))
    return Engine(Scheduler(limits, cache), ThreadExecutor(runner), async_scheduling=async_scheduling)


def request(request_id: str, max_tokens: int = 8) -> Request:
    return Request(
        request_id=request_id, prompt_token_ids=(1, 2, 3, 4, 5), params=SamplingParams(max_tokens=max_tokens, seed=1)
    )


def tokens(deltas: list[SequenceDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


@pytest.fixture(params=[False, True], ids=["plain", "async"])
def async_scheduling(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def alarm() -> Iterator[None]:
    """SIGALRM acts like Ctrl-C."""

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("fails_at", range(5))
def test_a_failed_step_ends_the_engine_with_its_cause(fails_at: int, async_scheduling: bool) -> None:
    engine = make(Runner(fails_at=fails_at), async_scheduling)
    engine.add(request("a"))
    with pytest.raises(EngineDeadError, match="ValueError: broken device") as caught:
        for _ in range(20):
            engine.step()
    assert isinstance(caught.value.__cause__, ValueError)
    assert not engine.has_work()
    for call in (engine.step, lambda: engine.add(request("b"))):
        with pytest.raises(EngineDeadError, match="broken device"):
            call()
    assert engine.finish("a") == []
    engine.shutdown()


def test_an_interrupt_while_waiting_loses_nothing(alarm: None, async_scheduling: bool) -> None:
    """Every step takes 20 ms and an interrupt comes every 7 ms: the tokens are those of an undisturbed run."""
    engine = make(Runner(step_s=0.02), async_scheduling)
    engine.add(request("a"))
    got: list[SequenceDelta] = []
    interrupts = 0
    while engine.has_work():
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.007)
            got += engine.step()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts >= 8
    assert tokens(got) == StubRunner(BLOCK, VOCAB).continuation(request("a"), 0, 8)
    engine.check()
    engine.shutdown()


def test_two_steps_are_in_flight_only_when_asked_for(async_scheduling: bool) -> None:
    engine = make(Runner(), async_scheduling)
    planned: list[int] = []
    engine.on_plan = lambda step: planned.append(step.number)
    engine.add(request("a"))
    engine.step()
    assert planned == ([0, 1] if async_scheduling else [0])
    engine.step()
    assert planned == ([0, 1, 2] if async_scheduling else [0, 1])
    engine.shutdown()


def test_finish_returns_the_last_delta_and_frees(async_scheduling: bool) -> None:
    engine = make(Runner(), async_scheduling)
    engine.add(request("a"))
    engine.step()
    (last,) = engine.finish("a")
    assert (last.token_ids, last.finish_reason) == ((), FinishReason.ABORT)
    while engine.has_work():
        assert engine.step() == []
    assert engine.stats().used_blocks == 0
    engine.check()
    engine.shutdown()


def test_nothing_goes_on_after_shutdown(async_scheduling: bool) -> None:
    engine = make(Runner(step_s=0.01), async_scheduling)
    engine.add(request("a"))
    engine.step()
    engine.shutdown()
    assert not engine.has_work()
    for call in (engine.step, lambda: engine.add(request("b"))):
        with pytest.raises(EngineDeadError, match="shut down"):
            call()
