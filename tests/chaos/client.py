"""A client that says exactly what it saw of one request, and may leave in the middle."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.chaos.asks import Ask
from tests.chaos.verdicts import Seen

GRACE_S = 5.0
_BACK_OFF_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a request is made. leave_s: leaves so long after it was sent; None: stays."""

    stream: bool = False
    include_usage: bool = False
    leave_s: float | None = None


def draw_manner(draw: random.Random) -> Manner:
    """Two in three stream; one in twelve leaves."""
    return Manner(
        stream=draw.random() < 0.67,
        include_usage=draw.random() < 0.5,
        leave_s=draw.expovariate(3) if draw.random() < 0.08 else None,
    )


def session(limit: int = 0) -> aiohttp.ClientSession:
    """A connection for every request: none is reused, so one that breaks belongs to the request that sees it."""
    connector = aiohttp.TCPConnector(limit=limit, force_close=True)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))


async def send(http: aiohttp.ClientSession, url: str, ask: Ask, manner: Manner, *, deadline_s: float) -> Seen:
    """Send one request and read its answer to the end.

    Args:
        deadline_s: from now; an answer that has not ended GRACE_S later hangs.
    """
    seen = Seen(number=ask.number, started_s=time.monotonic())
    limit_s = deadline_s + GRACE_S if manner.leave_s is None else manner.leave_s
    try:
        async with asyncio.timeout(limit_s):
            await _exchange(http, url, ask, manner, seen)
    except TimeoutError:
        seen.hung, seen.left = manner.leave_s is None, manner.leave_s is not None
    except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: an event that is no JSON
        seen.broken = repr(error)
    seen.ended_s = time.monotonic()
    return seen


async def _exchange(http: aiohttp.ClientSession, url: str, ask: Ask, manner: Manner, seen: Seen) -> None:
    body = ask.body
    if manner.stream:
        body = {**body, "stream": True, "stream_options": {"include_usage": manner.include_usage}}
    headers = {} if ask.session is None else {"x-session-id": ask.session}
    async with http.post(url + ask.path, json=body, headers=headers) as reply:
        seen.status = reply.status
        if reply.status != 200:
            seen.error = _message(await reply.read())
        elif manner.stream:
            await _read_events(reply, seen)
        else:
            seen.answer.add(json.loads(await reply.read()))
            seen.done = True


def _message(raw: bytes) -> str:
    """Of an error body; "" when it is none."""
    try:
        return str(json.loads(raw)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""


async def _read_events(reply: aiohttp.ClientResponse, seen: Seen) -> None:
    rest = b""
    async for piece in reply.content.iter_any():
        *blocks, rest = (rest + piece).split(b"\n\n")
        for block in blocks:
            for line in block.split(b"\n"):
                if line.startswith(b"data: "):
                    _take_event(line[6:], seen)
    if rest:
        seen.broken, seen.done = f"half an event: {rest[:80]!r}", False


def _take_event(data: bytes, seen: Seen) -> None:
    if data == b"[DONE]":
        seen.done = True
        return
    event: dict[str, Any] = json.loads(data)
    if "error" in event:
        seen.error = str(event["error"].get("message", ""))
    else:
        seen.answer.add(event)


class Load:
    """So many clients, each with one request at a time, until told to stop.

    Attributes:
        seen: of every request that ended, in that order.
    """

    def __init__(self, url: str, asks: Sequence[Ask], *, clients: int, seed: int, deadline_s: float) -> None:
        self.seen: list[Seen] = []
        self._url, self._asks, self._deadline_s = url, asks, deadline_s
        self._draw = random.Random(seed)
        self._stopping = False
        self._num_clients = clients
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin."""
        self._tasks = [asyncio.create_task(self._client()) for _ in range(self._num_clients)]

    async def stop(self) -> None:
        """Send nothing more, and wait for the answers that still come."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _client(self) -> None:
        async with session() as http:
            while not self._stopping:
                ask, manner = self._draw.choice(self._asks), draw_manner(self._draw)
                seen = await send(http, self._url, ask, manner, deadline_s=self._deadline_s)
                self.seen.append(seen)
                if seen.error is not None or seen.broken is not None:
                    await asyncio.sleep(_BACK_OFF_S)  # as clients do before they try again


async def batch(url: str, asks: Sequence[Ask], *, clients: int, deadline_s: float) -> list[Seen]:
    """Each request once, every second one streamed, at most `clients` at a time."""
    gate = asyncio.Semaphore(clients)
    async with session() as http:

        async def one(index: int, ask: Ask) -> Seen:
            async with gate:
                manner = Manner(stream=index % 2 == 0, include_usage=index % 4 == 0)
                return await send(http, url, ask, manner, deadline_s=deadline_s)

        return await asyncio.gather(*(one(index, ask) for index, ask in enumerate(asks)))
