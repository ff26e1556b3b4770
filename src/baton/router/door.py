"""The way in: open until the router drains. It knows who is inside, and can send them away with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.web.errors import ApiError, error_body, error_response
from baton.web.sse import DONE, event

_READY = "/ready"
_CLOSE = {"Connection": "close"}


class Door:
    """ASGI middleware. Only POSTs count, which ask for work; whoever just looks may do so until the end.

    Attributes:
        empty: set while nobody is inside.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open = True
        self._inside: set[asyncio.Task[Any]] = set()
        self._sent_away: set[asyncio.Task[Any]] = set()
        self.empty = asyncio.Event()
        self.empty.set()

    @property
    def num_inside(self) -> int:
        """Requests that have not ended."""
        return len(self._inside)

    def close(self) -> None:
        """From now on new requests are answered 503, and so is /ready."""
        self._open = False

    def break_off(self) -> None:
        """End what is inside; each client is told by an error."""
        for task in self._inside - self._sent_away:
            self._sent_away.add(task)
            task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        counts = scope["type"] == "http" and scope["method"] == "POST"
        if not self._open and (counts or scope.get("path") == _READY):
            await error_response(_error("the router is shutting down"), _CLOSE)(scope, receive, send)
        elif counts:
            await self._let_in(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._inside.add(task)
        self.empty.clear()
        start: Message | None = None

        async def watched(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            if task not in self._sent_away:
                raise
            task.uncancel()
            await _tell(scope, receive, send, start)
        finally:
            self._inside.discard(task)
            self._sent_away.discard(task)
            if not self._inside:
                self.empty.set()


async def _tell(scope: Scope, receive: Receive, send: Send, start: Mapping[str, Any] | None) -> None:
    """The rest of an answer that was broken off. One in a piece that has begun cannot be mended: it stays short."""
    error = _error("the router was shut down before the answer was complete")
    if start is None:
        await error_response(error, _CLOSE)(scope, receive, send)
    elif Headers(raw=start["headers"]).get("content-type", "").startswith("text/event-stream"):
        await send({"type": "http.response.body", "body": event(error_body(error)) + DONE})


def _error(message: str) -> ApiError:
    return ApiError(503, message, retry=True)
