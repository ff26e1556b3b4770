"""Both ends of the channel in one process: what is sent arrives whole and in order, and nobody ever waits to send."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import zmq

from baton.core.request import FinishReason, Request, SequenceDelta, TokenLogprobs
from baton.core.sampling import Grammar, GrammarKind, SamplingParams
from baton.core.stats import SchedulerStats
from baton.wire.channel import EngineSocket, FrontSocket
from baton.wire.engine import Admitted, Cancel, Failed, FromEngine, Output, Ping, Pong, Refused, Stop, Submit, Withdraw

pytestmark = pytest.mark.slow

STATS = SchedulerStats(
    num_running=1,
    num_waiting=2,
    num_preemptions=3,
    used_blocks=4,
    total_blocks=5,
    quarantined_blocks=6,
    prefix_query_tokens=7,
    prefix_hit_tokens=8,
)
FULL_REQUEST = Request(
    request_id="r",
    prompt_token_ids=(1, 2**31),
    params=SamplingParams(
        n=3,
        temperature=0.5,
        logit_bias={7: -1.5},
        allowed_token_ids=(1, 2),
        bad_words_token_ids=((1, 2), (3,)),
        stop=("\u00e4",),
        seed=2**64 - 1,
        logprobs=0,
        grammar=Grammar(kind=GrammarKind.REGEX, source="a+"),
    ),
    priority=-1,
    resumed=(3, 2**31),
    cache_salt="salt",
    eos_token_ids=frozenset({5, 6}),
)
FULL_OUTPUT = Output(
    deltas=(
        SequenceDelta(
            request_id="r",
            index=2,
            token_ids=(9,),
            logprobs=(TokenLogprobs(token_id=9, logprob=-0.5, rank=1, top=((9, -0.5),)),),
            prompt_logprobs=(TokenLogprobs(token_id=2, logprob=-1.0, rank=4),),
            finish_reason=FinishReason.STOP,
            stop_token_id=9,
            num_cached_tokens=16,
        ),
    ),
    stats=STATS,
    time_s=1.5,
    num_tokens=11,
    admitted=(Admitted(request_id="r", time_s=1.25),),
)


class Pair:
    """A front and an engine socket; `received` is what the front got."""

    def __init__(self) -> None:
        self.received: list[FromEngine] = []
        self.front = FrontSocket(self.received.append)
        self.engine = EngineSocket(self.front.address)

    async def __aenter__(self) -> Pair:
        await self.connected()
        return self

    async def connected(self) -> None:
        """An engine's first message shows that it is there."""
        self.engine.send(FULL_OUTPUT)
        assert await self.at_front(1) == [FULL_OUTPUT]
        self.received.clear()

    async def __aexit__(self, *error: object) -> None:
        self.front.close()
        await asyncio.to_thread(self.engine.close)

    async def at_engine(self, count: int) -> list[object]:
        messages: list[object] = []
        deadline = time.monotonic() + 5
        while len(messages) < count and time.monotonic() < deadline:
            messages += self.engine.drain()
            await asyncio.sleep(0.001)
        return messages

    async def at_front(self, count: int) -> list[FromEngine]:
        deadline = time.monotonic() + 5
        while len(self.received) < count and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        return self.received


def run(test: Callable[[Pair], Awaitable[None]]) -> None:
    async def body() -> None:
        async with Pair() as pair:
            await test(pair)

    asyncio.run(body())


def test_messages_arrive_equal_and_in_order() -> None:
    async def body(pair: Pair) -> None:
        sent = [
            Submit(request=FULL_REQUEST),
            Cancel(request_id="r"),
            Cancel(request_id="r", index=1, reason=FinishReason.STOP),
            Withdraw(transfer_id="t"),
            Ping(),
            Stop(),
        ]
        assert all(pair.front.send(message) for message in sent)
        assert await pair.at_engine(len(sent)) == sent
        refused, failed = Refused(request_id="r", message="no", param="n"), Failed(message="x", user_error=True)
        back = [FULL_OUTPUT, refused, Pong(), failed]
        for message in back:
            pair.engine.send(message)
        assert await pair.at_front(len(back)) == back

    run(body)


def test_malformed_frames_are_counted_and_dropped() -> None:
    bad_value = msgspec.msgpack.decode(msgspec.msgpack.encode(Submit(request=FULL_REQUEST)))
    bad_value["request"]["params"]["temperature"] = -1.0  # SamplingParams refuses it
    frames = [
        b"",
        b"\xc1",
        b"\xff" * 100,
        msgspec.msgpack.encode({"type": "Nothing"}),
        msgspec.msgpack.encode(bad_value),
    ]

    async def body(pair: Pair) -> None:
        pair.engine.close()
        context = zmq.Context()
        stranger = context.socket(zmq.PAIR)
        stranger.connect(pair.front.address)
        await asyncio.sleep(0.05)
        for frame in frames:
            stranger.send(frame)
        stranger.send(msgspec.msgpack.encode(FULL_OUTPUT))
        assert await pair.at_front(1) == [FULL_OUTPUT]
        assert pair.front.num_malformed == len(frames)
        stranger.close()
        context.term()
        pair.front.close()
        pair.front, pair.engine = (other := Pair()).front, other.engine
        await other.connected()
        for frame in frames:
            pair.front._socket.send(frame)
        pair.front.send(Stop())
        assert await pair.at_engine(1) == [Stop()]
        assert pair.engine.num_malformed == len(frames)

    run(body)


def test_an_engine_is_never_blocked_by_a_front_that_does_not_read() -> None:
    async def body(pair: Pair) -> None:
        start = time.monotonic()
        for _ in range(20_000):  # ZeroMQ's default mark is 1000 a side
            pair.engine.send(FULL_OUTPUT)
        assert time.monotonic() - start < 5  # the event loop was not given a turn: nothing was read
        assert len(await pair.at_front(20_000)) == 20_000

    run(body)


def test_a_front_without_an_engine_says_so() -> None:
    async def body() -> None:
        front = FrontSocket(print)
        assert not front.send(Stop())
        front.close()

    asyncio.run(body())


def test_an_engine_can_send_after_its_front_has_gone() -> None:
    async def body(pair: Pair) -> None:
        pair.front.close()
        pair.engine.send(FULL_OUTPUT)
        assert not pair.front.send(Stop())

    run(body)


def test_wait_ends_by_a_message_by_wake_and_by_time() -> None:
    async def body(pair: Pair) -> None:
        def waited() -> float:
            start = time.monotonic()
            pair.engine.wait(2.0)
            return time.monotonic() - start

        pair.front.send(Stop())
        assert await asyncio.to_thread(waited) < 1.0
        assert pair.engine.drain() == [Stop()]
        timer = threading.Timer(0.05, pair.engine.wake)
        timer.start()
        assert 0.03 < await asyncio.to_thread(waited) < 1.0
        pair.engine.wake()
        assert waited() < 1.0  # a wake-up before the wait counts
        start = time.monotonic()
        pair.engine.wait(0.05)
        assert 0.03 < time.monotonic() - start < 1.0  # and only once

    run(body)


def test_messages_that_arrive_while_the_front_sends_are_read() -> None:
    """The socket's descriptor signals edges; a send can swallow one."""

    async def body(pair: Pair) -> None:
        stop = threading.Event()
        count = 300

        def echo() -> None:
            while not stop.is_set():
                for message in pair.engine.drain():
                    assert isinstance(message, Cancel)
                    pair.engine.send(Refused(request_id=message.request_id, message=""))

        thread = threading.Thread(target=echo)
        thread.start()
        try:
            for i in range(count):
                pair.front.send(Cancel(request_id=str(i)))
                if i % 7 == 0:
                    await asyncio.sleep(0)
            answers = await pair.at_front(count)
        finally:
            stop.set()
            thread.join()
        assert [a.request_id for a in answers if isinstance(a, Refused)] == [str(i) for i in range(count)]

    run(body)


def test_the_socket_is_private_and_leaves_no_file() -> None:
    async def body(pair: Pair) -> None:
        path = Path(pair.front.address.removeprefix("ipc://"))
        assert path.parent.stat().st_mode & 0o777 == 0o700
        pair.front.send(Stop())
        await pair.at_engine(1)
        pair.front.forget_path()
        assert not path.parent.exists()
        pair.front.send(Stop())
        assert await pair.at_engine(1) == [Stop()]
        other = FrontSocket(print)
        folder = Path(other.address.removeprefix("ipc://")).parent
        assert folder.exists()
        other.close()
        other.close()
        assert not folder.exists()

    run(body)
