"""GET /fleet/events: a snapshot a second as server-sent events, made once for all who look, and only while one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

from starlette.requests import Request
from starlette.responses import Response

from baton.web.errors import ApiError
from baton.web.sse import EventStream, event

_EVERY_S = 1.0
_LIFE_S = 600.0  # then the page asks anew: a connection that nobody reads does not hold its place for ever
_MAX_VIEWERS = 32


class FleetEvents:
    """Everyone gets the newest snapshot; who reads slowly misses some.

    Args:
        snapshot: makes the JSON of one event.
    """

    def __init__(self, snapshot: Callable[[], bytes], *, every_s: float = _EVERY_S, life_s: float = _LIFE_S) -> None:
        self._snapshot = snapshot
        self._every_s = every_s
        self._life_s = life_s
        self._newest = b""
        self._made_s = float("-inf")
        self._closed = asyncio.Event()
        self.num_viewers = 0

    async def respond(self, request: Request) -> Response:
        """The endpoint.

        Raises:
            ApiError: 503, too many look already, or the router ends.
        """
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if self.num_viewers >= _MAX_VIEWERS:
            raise ApiError(503, f"{_MAX_VIEWERS} pages follow this router already; close one", retry=True)
        if self._closed.is_set():
            raise ApiError(503, "the router is shutting down", retry=True)
        self.num_viewers += 1
        resources = AsyncExitStack()
        resources.callback(self._left)
        end_s = asyncio.get_running_loop().time() + self._life_s
        return EventStream(self._events(request, end_s), resources, deadline_s=0.0)

    def close(self) -> None:
        """End all streams: a server that drains does not wait for those who look."""
        self._closed.set()

    def _left(self) -> None:
        self.num_viewers -= 1

    async def _events(self, request: Request, end_s: float) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while loop.time() < end_s and not self._closed.is_set() and not await request.is_disconnected():
            yield event(self._fresh(loop.time()))
            try:
                async with asyncio.timeout(self._made_s + self._every_s - loop.time()):
                    await self._closed.wait()
            except TimeoutError:
                continue

    def _fresh(self, now: float) -> bytes:
        """The newest snapshot, if it is of this second; else a new one."""
        if now - self._made_s >= self._every_s * 0.9:
            self._newest = self._snapshot()
            self._made_s = now
        return self._newest
