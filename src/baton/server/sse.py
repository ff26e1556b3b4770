"""Server-sent events: the response that sends them as they come, and what is sent when something breaks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from baton.obs.log import get_logger
from baton.server.errors import ClientGoneError, as_api_error, error_body

_log = get_logger(__name__)
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
    """

    def __init__(self, events: AsyncIterator[bytes], resources: AsyncExitStack) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        async with self._resources:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            last = DONE
            try:
                async for piece in self._events:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except (ClientGoneError, OSError):
                return
            except Exception as error:
                api_error = as_api_error(error)
                if api_error.status == 500:
                    _log.exception("request %s failed", scope.get("state", {}).get("request_id"))
                last = event(error_body(api_error)) + DONE
            await send({"type": "http.response.body", "body": last})
