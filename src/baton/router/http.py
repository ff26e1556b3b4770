"""The router as an HTTP client: the only file that knows aiohttp."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from yarl import URL

_KEPT_S = 4.0
"""An idle connection is not used after this, so that none meets its end: uvicorn closes them after 5 s."""
_TIMEOUT = ClientTimeout(total=None, sock_connect=3.0)
_SKIPPED = ("accept", "accept-encoding", "user-agent", "content-type")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole answer. headers: names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Incoming:
    """An answer whose body still comes. Close it: one that is not at its end closes its connection.

    Attributes:
        status: of the answer.
    """

    __slots__ = ("_answer", "status")

    def __init__(self, answer: ClientResponse) -> None:
        self._answer = answer
        self.status = answer.status

    def headers(self) -> dict[str, str]:
        """All of them, names in lower case."""
        return {name.lower(): value for name, value in self._answer.headers.items()}

    def header(self, name: str) -> str | None:
        """The value of a header."""
        return self._answer.headers.get(name)

    async def next(self) -> bytes:
        """What has come since the last call, at least one byte; b"" at the end.

        Raises:
            HttpError: the connection broke.
        """
        try:
            return await self._answer.content.readany()
        except (ClientError, OSError) as error:
            raise HttpError(f"the answer broke off: {_words(error)}") from error

    async def rest(self) -> bytes:
        """All that is still to come. Raises as `next`."""
        try:
            return await self._answer.content.read()
        except (ClientError, OSError) as error:
            raise HttpError(f"the answer broke off: {_words(error)}") from error

    def close(self) -> None:
        """Nobody reads on. When all has come, its connection serves others already, and this does nothing."""
        self._answer.close()


class Http:
    """Made once; used on one event loop."""

    def __init__(self) -> None:
        self._made: ClientSession | None = None
        self._urls: dict[str, URL] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        if self._made is not None:
            await self._made.close()

    async def open(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Incoming:
        """Send a request; returns when the head of its answer is here. No limit of time but for connecting.

        Raises:
            HttpError: no connection, or it broke first.
        """
        try:
            answer = await self._session.request(
                method, self._url(url), headers=headers, data=body, allow_redirects=False
            )
        except (ClientError, OSError, ValueError) as error:
            raise HttpError(f"no answer from {url}: {_words(error)}", refused=_is_refused(error)) from error
        return Incoming(answer)

    async def fetch(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Reply:
        """A request and its whole answer, whatever its status.

        Raises:
            HttpError: no answer, or not within `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                incoming = await self.open(method, url, headers=headers, body=body)
                try:
                    return Reply(status=incoming.status, headers=incoming.headers(), body=await incoming.rest())
                finally:
                    incoming.close()
        except TimeoutError:
            raise HttpError(f"no answer from {url} within {timeout_s:g} s") from None

    async def get_json(self, url: str, *, timeout_s: float, headers: Mapping[str, str] | None = None) -> Any:
        """The value that a GET answers with.

        Raises:
            HttpError: no answer, another status than 200, or no JSON.
        """
        reply = await self.fetch("GET", url, timeout_s=timeout_s, headers=headers)
        if reply.status != 200:
            raise HttpError(f"{url} answered {reply.status}", status=reply.status)
        try:
            return msgspec.json.decode(reply.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise HttpError(f"{url} answered no JSON", status=reply.status) from None

    @property
    def _session(self) -> ClientSession:
        """Made on the loop that uses it first."""
        if self._made is None:
            self._made = ClientSession(
                connector=TCPConnector(limit=0, keepalive_timeout=_KEPT_S, ttl_dns_cache=60),
                cookie_jar=DummyCookieJar(),
                auto_decompress=False,
                timeout=_TIMEOUT,
                skip_auto_headers=_SKIPPED,
            )
        return self._made

    def _url(self, url: str) -> URL:
        """Parsed once: a fleet has few."""
        known = self._urls.get(url)
        if known is None:
            if len(self._urls) > 1024:
                self._urls.clear()
            known = self._urls[url] = URL(url)
        return known


def _is_refused(error: BaseException) -> bool:
    """Of a name with several addresses, the error of each is in the text only."""
    cause = getattr(error, "os_error", error)
    return isinstance(cause, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(cause)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
