"""One HTTP/1.1 connection to a worker, and the answer that comes over it.

A request costs the router little else than its two legs, and general clients spend several times of that on each: this
one sends a request, parses what comes back with uvicorn's parser, and hands the pieces on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

_BUFFERED_BYTES = 1 << 20
"""Of an answer that nobody reads meanwhile; then its worker has to wait."""


class HttpError(Exception):
    """No answer, not all of it, or (of the calls that want JSON) another status than 200.

    Attributes:
        status: of the answer; 0 when there is none.
        refused: nobody listens there.
    """

    def __init__(self, message: str, *, status: int = 0, refused: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.refused = refused


class Incoming:
    """An answer whose body still comes. Close it: one that is not at its end closes its connection.

    Attributes:
        status: of the answer; 0 before its head has come.
    """

    __slots__ = ("_complete", "_connection", "_error", "_headers", "_parts", "_size", "_waiter", "status")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []
        self._size = 0
        self._complete = False
        self._error: HttpError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.status = 0

    def headers(self) -> dict[str, str]:
        """All of them, names in lower case."""
        return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._headers}

    def header(self, name: str) -> str | None:
        """The value of a header; its name in lower case."""
        return self.headers().get(name)

    async def head(self) -> None:
        """Until status and headers are here.

        Raises:
            HttpError: the connection broke first.
        """
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._news()

    async def next(self) -> bytes:
        """What has come since the last call, at least one byte; b"" at the end.

        Raises:
            HttpError: the connection broke.
        """
        while not self._parts:
            if self._complete:
                return b""
            if self._error is not None:
                raise self._error
            await self._news()
        parts, self._parts = self._parts, []
        if self._size > _BUFFERED_BYTES and not self._complete:
            self._connection.resume()
        self._size = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def rest(self) -> bytes:
        """All that is still to come. Raises as `next`."""
        found = [await self.next()]
        while found[-1]:
            found.append(await self.next())
        return b"".join(found)

    def close(self) -> None:
        """Nobody reads on. When all has come, its connection serves others already, and this does nothing."""
        if not self._complete:
            self._connection.abort()

    async def _news(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None

    def began(self, status: int) -> None:
        """The head is here."""
        self.status = status
        self._wake()

    def header_came(self, name: bytes, value: bytes) -> None:
        """A header is here."""
        self._headers.append((name, value))

    def came(self, part: bytes) -> bool:
        """A part of the body is here. Returns whether there is enough for now."""
        self._parts.append(part)
        self._size += len(part)
        self._wake()
        return self._size > _BUFFERED_BYTES

    def ended(self) -> None:
        """All of it is here."""
        self._complete = True
        self._wake()

    def broke(self, error: HttpError) -> None:
        """No more will come."""
        if not self._complete and self._error is None:
            self._error = error
            self._wake()


class Connection(asyncio.Protocol):
    """One request at a time.

    Args:
        on_free: the answer is complete; the connection can serve another request.
        on_lost: it has ended.

    Attributes:
        idle_since_s: on the loop's clock.
        closed: it can serve no more.
    """

    def __init__(self, on_free: Callable[[Connection], None], on_lost: Callable[[Connection], None]) -> None:
        self._on_free = on_free
        self._on_lost = on_lost
        self._transport: asyncio.Transport
        self._parser = HttpResponseParser(self)
        self._incoming: Incoming | None = None
        self._until_close = self._paused = False
        self.idle_since_s = 0.0
        self.closed = False

    def send(self, data: bytes) -> Incoming:
        """Send a request."""
        incoming = self._incoming = Incoming(self)
        self._transport.write(data)
        return incoming

    def abort(self) -> None:
        """Close it now, whatever is under way."""
        self.closed = True
        self._transport.abort()
        self._break(HttpError("the connection was closed"))

    def resume(self) -> None:
        """Read on after there was enough."""
        if self._paused and not self.closed:
            self._paused = False
            self._transport.resume_reading()

    # Of asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self.closed = True
            self._transport.abort()
            self._break(HttpError(f"what it answers is not HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._on_lost(self)
        if error is None and self._until_close and self._incoming is not None:
            self._incoming.ended()
            self._incoming = None
        self._break(HttpError(str(error) if error else "the connection was closed by the other side"))

    def _break(self, error: HttpError) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.broke(error)

    # Of the parser.

    def on_message_begin(self) -> None:
        if self._incoming is None:  # an answer that nobody asked for
            self.closed = True
            self._transport.abort()
        self._until_close = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._until_close = False
        if self._incoming is not None:
            self._incoming.header_came(name, value)

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._incoming is not None and status >= 200:
            self._incoming.began(status)

    def on_body(self, part: bytes) -> None:
        if self._incoming is not None and self._incoming.came(part) and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        incoming = self._incoming
        if incoming is None or not incoming.status:  # of an interim answer (1xx), which says nothing
            return
        self._incoming = None
        incoming.ended()
        self.resume()
        if self._parser.should_keep_alive() and not self.closed:
            self._on_free(self)
        else:
            self.closed = True
            self._transport.close()
