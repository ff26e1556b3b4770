"""A client that leaves, at each stage of its request: both workers are free of it within two seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from baton.core.handoff import TransferMode
from tests.cluster.serving import until
from tests.router.scripted import Answering, Seen, chunk, give, take, wait
from tests.router.test_dispatch import PATH, STREAM, Scene, scene

PUSH, PULL = TransferMode.PUSH, TransferMode.PULL
MODES = pytest.mark.parametrize("mode", [PUSH, PULL])
BODIES = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
FREE_S = 2.0


def leave(on: Scene, stage: Callable[[], Any], *, stream: bool) -> None:
    """Send a request, close its connection when it has come to a stage, and wait until nobody works on it."""

    async def ask() -> None:
        async with httpx.AsyncClient(base_url=on.router.url, timeout=30) as http:
            asking = asyncio.create_task(http.post(PATH, json={**STREAM, "stream": stream}))
            await asyncio.to_thread(until, stage)
            asking.cancel()
            await asyncio.wait({asking})

    asyncio.run(ask())
    start = time.monotonic()
    until(lambda: not on.router.journal.live, FREE_S)
    for each in (*on.prefills, *on.decodes):
        until(lambda each=each: all(seen.left or seen.complete for seen in each.seen), FREE_S)
    assert all(hold.outcome is not None for hold in on.placer.taken)
    assert time.monotonic() - start < FREE_S
    assert on.router.last.status == 499 and on.router.last.error == "the client left"


@BODIES
def test_in_the_queue(stream: bool) -> None:
    """Of a pull: its prefill is over, and no decode worker has room. What the prefill worker keeps is withdrawn."""
    with scene(PULL) as on:
        on.placer.full.set()
        leave(on, lambda: any(seen.complete for seen in on.prefills[0].seen), stream=stream)
        transfer_id = on.router.last.attempts[0].transfer_id
        on.prefills[0].until(lambda: on.prefills[0].withdrawn == [transfer_id])
        assert on.decodes[0].seen == []


@MODES
@BODIES
def test_in_prefill(mode: TransferMode, stream: bool) -> None:
    with scene(mode, [wait], [wait]) as on:
        leave(on, lambda: on.prefills[0].seen and (mode is PULL or on.decodes[0].seen), stream=stream)
        assert on.prefills[0].seen[0].left and all(seen.left for seen in on.decodes[0].seen)
        assert {hold.outcome.value for hold in on.placer.taken} == {"cancelled"}


@MODES
@BODIES
def test_in_the_hand_over(mode: TransferMode, stream: bool) -> None:
    with scene(mode, [give], [wait]) as on:
        leave(on, lambda: on.decodes[0].seen and any(seen.complete for seen in on.prefills[0].seen), stream=stream)
        transfer_id = on.router.last.attempts[0].transfer_id
        on.prefills[0].until(lambda: on.prefills[0].withdrawn == [transfer_id])
        assert on.decodes[0].seen[0].left


@MODES
def test_in_decode(mode: TransferMode) -> None:
    """The KV has landed: there is nothing to withdraw."""
    landed = []

    async def slow(seen: Seen, answer: Answering) -> None:
        await answer.stream()
        await answer.event(chunk("a"), [97])
        await answer.event(chunk("b"), [98])
        landed.append(seen)
        await asyncio.sleep(60)

    with scene(mode, [give], [slow]) as on:
        leave(on, lambda: landed and any(hold.has_landed for hold in on.placer.taken), stream=True)
        assert on.decodes[0].seen[0].left
        time.sleep(0.1)
        assert on.prefills[0].withdrawn == []


def test_while_a_retry_waits() -> None:
    """Nothing is sent after the client has gone."""

    async def busy(seen: Seen, answer: Answering) -> None:
        await answer.whole({"error": {"message": "", "type": "", "param": None, "code": 503}}, 503)

    with scene(PUSH, [busy], [wait], max_attempts=5) as on:
        leave(on, lambda: len(on.prefills[0].seen) == 3, stream=True)
        num_seen = len(on.prefills[0].seen)
        time.sleep(0.6)  # the next would have come after half a second
        assert len(on.prefills[0].seen) == num_seen


def test_a_client_that_reads_to_the_end_does_not_count_as_gone() -> None:
    with scene(PUSH, [give], [take("abc")]) as on:
        assert on.text() == "abc" and on.router.last.status == 200 and on.router.last.error == ""
