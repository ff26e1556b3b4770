"""The client against a hand-driven engine end: what arrives, what ends a stream, what a consumer sees of a failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from baton.core.errors import EngineDeadError, RequestError, UserError
from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.sampling import SamplingParams
from baton.core.stats import SchedulerStats
from baton.server.engine_client import DeltaStream, EngineClient, EngineState
from baton.wire.channel import EngineSocket
from baton.wire.engine import (
    Admitted,
    Cancel,
    EngineInfo,
    Failed,
    FromEngine,
    Output,
    Ping,
    Pong,
    Ready,
    Refused,
    Stop,
    Submit,
)

INFO = EngineInfo(
    model="m",
    tokenizer="",
    architecture="a",
    dtype="d",
    device="cpu",
    fingerprint="f",
    eos_token_ids=frozenset(),
    vocab_size=10,
    max_model_len=100,
    max_num_seqs=4,
    block_tokens=16,
    num_blocks=8,
)


def stats(num_running: int = 0) -> SchedulerStats:
    return SchedulerStats(
        num_running=num_running,
        num_waiting=0,
        num_preemptions=0,
        used_blocks=0,
        total_blocks=8,
        quarantined_blocks=0,
        prefix_query_tokens=0,
        prefix_hit_tokens=0,
    )


def request(request_id: str = "a", n: int = 1) -> Request:
    return Request(request_id=request_id, prompt_token_ids=(1,), params=SamplingParams(n=n, seed=0))


def delta(token: int, request_id: str = "a", index: int = 0, end: FinishReason | None = None) -> SequenceDelta:
    return SequenceDelta(request_id=request_id, index=index, token_ids=(token,), finish_reason=end)


def output(*deltas: SequenceDelta, **changes: Any) -> Output:
    return Output(**{"deltas": deltas, "stats": stats(1), "time_s": 1.0, "num_tokens": 1} | changes)


class Bench:
    """A client and the engine end of its socket."""

    def __init__(self) -> None:
        self.client = EngineClient()
        self.engine = EngineSocket(self.client.listen())

    async def send(self, *messages: FromEngine) -> None:
        """From the engine; returns when the client has had time to take them."""
        seen = asyncio.Event()
        self.client.on_output(lambda out: seen.set() if out.time_s == -1.0 else None)
        for message in messages:
            self.engine.send(message)
        self.engine.send(output(time_s=-1.0))
        await asyncio.wait_for(seen.wait(), 5)

    async def sent(self, count: int) -> list[object]:
        """What the client sent."""
        messages: list[object] = []
        deadline = time.monotonic() + 5
        while len(messages) < count and time.monotonic() < deadline:
            messages += self._drain()
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        return messages + self._drain()

    def _drain(self) -> list[object]:
        return [message for message in self.engine.drain() if not isinstance(message, Ping)]


def run(test: Callable[[Bench], Awaitable[None]]) -> None:
    async def body() -> None:
        bench = Bench()
        bench.engine.send(Ready(info=INFO))
        await asyncio.wait_for(bench.client.start(), 5)
        try:
            await test(bench)
        finally:
            await bench.client.close()
            await asyncio.to_thread(bench.engine.close)

    asyncio.run(body())


async def tokens(stream: DeltaStream) -> list[tuple[int, int]]:
    return [(d.index, t) async for d in stream for t in d.token_ids]


def test_a_stream_gives_its_deltas_in_order_and_ends() -> None:
    async def body(bench: Bench) -> None:
        assert bench.client.state is EngineState.READY and bench.client.info == INFO
        a, b = bench.client.submit(request("a", n=2)), bench.client.submit(request("b"))
        assert await bench.sent(2) == [Submit(request=request("a", n=2)), Submit(request=request("b"))]
        assert bench.client.num_live == 2 and a.admitted_s is None
        await bench.send(
            output(delta(1), delta(5, "b"), delta(9, "stranger"), admitted=(Admitted(request_id="a", time_s=3.5),)),
            output(delta(2, index=1), delta(3, end=FinishReason.LENGTH)),
            output(delta(4, index=1, end=FinishReason.STOP), stats=stats(7)),
        )
        assert bench.client.num_live == 1
        assert await tokens(a) == [(0, 1), (1, 2), (0, 3), (1, 4)]
        assert a.admitted_s == 3.5
        with pytest.raises(StopAsyncIteration):
            await anext(a)
        assert b.ready() == [delta(5, "b")] and b.ready() == []

    run(body)


def test_a_waiting_consumer_is_woken() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.submit(request())
        waiting = asyncio.create_task(tokens(stream))
        await asyncio.sleep(0.01)
        await bench.send(output(delta(1)))
        assert not waiting.done()
        await bench.send(output(delta(2, end=FinishReason.STOP)))
        assert await asyncio.wait_for(waiting, 1) == [(0, 1), (0, 2)]

    run(body)


def test_stats_and_listeners_see_every_output_after_the_streams() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.submit(request())
        seen: list[tuple[float, int]] = []

        def broken(out: Output) -> None:
            raise ValueError("a listener of ours")

        bench.client.on_output(broken)
        bench.client.on_output(lambda out: seen.append((out.time_s, len(stream._arrived))))
        await bench.send(output(delta(1), time_s=2.0), output(delta(2), time_s=3.0, stats=stats(5)))
        assert seen[:2] == [(2.0, 1), (3.0, 2)]
        assert bench.client.stats == stats(1)  # of the latest output, the bench's own

    run(body)


def test_cancel_of_a_sequence_drops_it_and_the_others_go_on() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.submit(request(n=2))
        await bench.send(output(delta(1), delta(2, index=1)))
        stream.cancel(0, FinishReason.STOP)
        stream.cancel(0)
        assert await bench.sent(2) == [
            Submit(request=request(n=2)),
            Cancel(request_id="a", index=0, reason=FinishReason.STOP),
        ]
        await bench.send(output(delta(3), delta(4, index=1, end=FinishReason.LENGTH)))
        assert await tokens(stream) == [(1, 2), (1, 4)]
        stream.cancel(1)
        stream.cancel()
        assert await bench.sent(0) == []
        assert bench.client.num_live == 0

    run(body)


def test_cancel_ends_a_consumer_that_waits() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.submit(request(n=2))
        waiting = asyncio.create_task(tokens(stream))
        await asyncio.sleep(0.01)
        stream.cancel()
        stream.cancel()
        assert await asyncio.wait_for(waiting, 1) == []
        assert await bench.sent(2) == [Submit(request=request(n=2)), Cancel(request_id="a")]
        await bench.send(output(delta(1)))
        assert stream.ready() == []

    run(body)


def test_a_refused_request_raises() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.submit(request())
        await bench.send(
            Refused(request_id="a", message="too long", param="prompt"), Refused(request_id="x", message="")
        )
        with pytest.raises(RequestError, match="too long") as refusal:
            await anext(stream)
        assert refusal.value.param == "prompt"
        assert bench.client.num_live == 0

    run(body)


def test_what_arrived_before_a_death_comes_first() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.submit(request())
        await bench.send(output(delta(1)), Failed(message="RuntimeError: boom"))
        assert bench.client.state is EngineState.DEAD
        bench.client.lost("the process ended")  # later, and knows less
        assert await anext(stream) == delta(1)
        with pytest.raises(EngineDeadError, match="boom"):
            await anext(stream)
        with pytest.raises(EngineDeadError, match="boom"):
            bench.client.submit(request("b"))
        assert bench.client.num_live == 0

    run(body)


def test_a_finished_stream_survives_a_death() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.submit(request())
        await bench.send(output(delta(1, end=FinishReason.STOP)))
        bench.client.lost("gone")
        assert await tokens(stream) == [(0, 1)]

    run(body)


def test_drain_refuses_new_requests_and_abort_ends_the_rest() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.submit(request())
        bench.client.drain("shutting down")
        assert bench.client.state is EngineState.DRAINING
        with pytest.raises(EngineDeadError, match="shutting down"):
            bench.client.submit(request("b"))
        await bench.send(output(delta(1)))
        assert await anext(stream) == delta(1)
        bench.client.abort_all("cut")
        with pytest.raises(EngineDeadError, match="cut"):
            await anext(stream)
        assert await bench.sent(2) == [Submit(request=request()), Cancel(request_id="a")]
        assert bench.client.num_live == 0

    run(body)


def test_a_new_engine_takes_over() -> None:
    async def body(bench: Bench) -> None:
        old = bench.client.submit(request())
        bench.client.lost("gone")
        second = EngineSocket(bench.client.listen())
        assert bench.client.state is EngineState.STARTING
        with pytest.raises(EngineDeadError, match="starting"):
            bench.client.submit(request("b"))
        second.send(Ready(info=INFO))
        await asyncio.wait_for(bench.client.start(), 5)
        new = bench.client.submit(request("b"))
        second.send(output(delta(3, "b", end=FinishReason.STOP)))
        assert await asyncio.wait_for(tokens(new), 5) == [(0, 3)]
        with pytest.raises(EngineDeadError, match="gone"):
            await anext(old)
        await asyncio.to_thread(bench.engine.close)
        bench.engine = second

    run(body)


@pytest.mark.parametrize(
    ("failed", "kind"),
    [(Failed(message="no model", user_error=True), UserError), (Failed(message="no model"), EngineDeadError)],
)
def test_an_engine_that_does_not_start(failed: Failed, kind: type[Exception]) -> None:
    async def body() -> None:
        bench = Bench()
        bench.engine.send(failed)
        with pytest.raises(kind, match="no model"):
            await asyncio.wait_for(bench.client.start(), 5)
        await bench.client.close()
        await asyncio.to_thread(bench.engine.close)

    asyncio.run(body())


def test_close_tells_the_engine_to_stop() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.submit(request())
        await bench.client.close()
        assert await bench.sent(2) == [Submit(request=request()), Stop()]
        with pytest.raises(EngineDeadError):
            await anext(stream)

    run(body)


def test_a_slow_consumer_holds_up_nobody() -> None:
    async def body(bench: Bench) -> None:
        slow, fast = bench.client.submit(request("slow")), bench.client.submit(request("fast"))
        await bench.send(*(output(delta(i, "slow"), delta(i, "fast")) for i in range(5000)))
        assert len(fast.ready()) == 5000
        assert [d.token_ids[0] for d in slow.ready()] == list(range(5000))

    run(body)


def test_an_engine_that_says_nothing_is_seen_and_one_that_answers_pings_is_not_silent() -> None:
    async def body(bench: Bench) -> None:
        async def for_a_while(answers: bool) -> float:
            """The longest silence of 1.2 s."""
            longest = 0.0
            for _ in range(120):
                if answers and any(isinstance(message, Ping) for message in bench.engine.drain()):
                    bench.engine.send(Pong())
                longest = max(longest, bench.client.silent_s)
                await asyncio.sleep(0.01)
            return longest

        assert await for_a_while(answers=True) < 0.9
        assert await for_a_while(answers=False) > 1.0
        bench.engine.send(output())
        await bench.sent(0)
        assert bench.client.silent_s < 0.3
        bench.client.lost("gone")
        assert bench.client.silent_s == 0.0

    run(body)
