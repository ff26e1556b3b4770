"""Server-sent events: the response that sends them as they come, and what is sent when something breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from baton.obs.log import get_logger
from baton.web.errors import ClientGoneError, as_api_error, error_body

_log = get_logger(__name__)
_GRACE_S = 1.0  # for each piece after the deadline, the event that says so among them
DONE = b"data: [DONE]\n\n"
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


def event(data: bytes) -> bytes:
    """One event."""
    return b"data: " + data + b"\n\n"


class EventStream(Response):
    """Sends events until there are no more, then [DONE]. An error after the headers is one event before it.

    `send` waits while the client reads slower than events come; what arrives meanwhile is in one piece afterwards.

    Args:
        events: encoded, one or more a piece.
        resources: closed whatever happens; ends the generation.
        deadline_s: on the loop's clock; from then on a client that reads nothing for a second is given up.
    """

    def __init__(
        self, events: AsyncIterator[bytes], resources: AsyncExitStack, deadline_s: float | None = None
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._resources = resources
        self._deadline_s = deadline_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        if self._deadline_s is not None:
            send = _bounded(send, self._deadline_s)
        async with self._resources:
            try:
                await self._send_all(scope, send)
            except (ClientGoneError, OSError) as error:
                if isinstance(error, TimeoutError):
                    _log.warning("request %s: its client reads nothing; given up", _id(scope))

    async def _send_all(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        last = DONE
        try:
            async for piece in self._events:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except (ClientGoneError, OSError):
            raise
        except Exception as error:
            api_error = as_api_error(error)
            if api_error.status == 500:
                _log.exception("request %s failed", _id(scope))
            last = event(error_body(api_error)) + DONE
        await send({"type": "http.response.body", "body": last})


def _bounded(send: Send, deadline_s: float) -> Send:
    """`send` that raises TimeoutError when it still waits for the client at the deadline, or a second later."""
    loop = asyncio.get_running_loop()

    async def bounded(message: Message) -> None:
        async with asyncio.timeout_at(max(deadline_s, loop.time() + _GRACE_S)):
            await send(message)

    return bounded


def _id(scope: Scope) -> object:
    return scope.get("state", {}).get("request_id")
