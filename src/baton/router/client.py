"""The answer on its way to the client."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from starlette.types import Send

from baton.router.record import RequestRecord
from baton.web.errors import ApiError, error_body
from baton.web.sse import DONE, event

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Client:
    """Sends one answer. `send` waits while the client reads slowly.

    Attributes:
        started: a status was sent; what goes wrong from now on is an event.
        ended: all was sent; that its connection ends now means nothing.
    """

    __slots__ = ("_record", "_send", "ended", "started")

    def __init__(self, send: Send, record: RequestRecord) -> None:
        self._send = send
        self._record = record
        self.started = self.ended = False

    async def events(self, data: bytes, *, last: bool = False) -> None:
        """Send events of a stream. last: there will be no more."""
        if not self.started:
            self.started = True
            self._record.status = 200
            self._record.first_token_s = time.time()
            await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        self.ended = last
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def whole(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """An answer in one piece."""
        self.started = self.ended = True
        self._record.status = status
        if status == 200:
            self._record.first_token_s = time.time()
        shown = {"content-type": "application/json", **headers, "content-length": str(len(body))}
        await self._send({"type": "http.response.start", "status": status, "headers": _raw(shown.items())})
        await self._send({"type": "http.response.body", "body": body})

    async def fail(self, error: ApiError, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """The answer, or its end, is an error.

        Args:
            body, headers: in a worker's words; b"": in ours.
        """
        self._record.error = self._record.error or error.message
        if self.ended:
            return
        body = body or error_body(error)
        if not self.started:
            await self.whole(error.status, body, error.headers if headers is None else headers)
            return
        await self.events(event(body) + DONE, last=True)


def _raw(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
