"""The router as an HTTP client: connections to the workers, kept while they are in use."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from baton.router.connection import Connection, HttpError, Incoming

__all__ = ["Http", "HttpError", "Incoming", "Reply"]

_KEPT_S = 4.0
"""An idle connection is not used after this, so that none meets its end: uvicorn closes them after 5 s."""
_CONNECT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole answer. headers: names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    host: str
    port: int
    secure: bool


class Http:
    """Made once; used on one event loop."""

    def __init__(self) -> None:
        self._idle: dict[_Origin, dict[Connection, None]] = {}
        self._open: set[Connection] = set()
        self._tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        for connection in list(self._open):
            connection.abort()

    async def open(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Incoming:
        """Send a request; returns when the head of its answer is here. No limit of time but for connecting.

        Raises:
            HttpError: no connection, or it broke first.
        """
        origin, host, path = _parts(url)
        data = _request(method, path, host, headers or {}, body)
        connection = self._reused(origin) or await self._connected(origin)
        incoming = connection.send(data)
        try:
            await incoming.head()
        except BaseException:
            incoming.close()
            raise
        return incoming

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
        return _value(url, await self.fetch("GET", url, timeout_s=timeout_s, headers=headers))

    async def post_json(
        self, url: str, value: Any, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Any:
        """POST a value, and what is answered. Raises as `get_json`."""
        sent = {"content-type": "application/json", **(headers or {})}
        reply = await self.fetch("POST", url, timeout_s=timeout_s, headers=sent, body=msgspec.json.encode(value))
        return _value(url, reply)

    def _reused(self, origin: _Origin) -> Connection | None:
        """A connection that served before, the latest; older ones end when they were idle too long."""
        idle = self._idle.get(origin)
        if not idle:
            return None
        oldest_s = asyncio.get_running_loop().time() - _KEPT_S
        while idle:
            connection, _ = idle.popitem()
            if not connection.closed and connection.idle_since_s >= oldest_s:
                return connection
            connection.abort()
        return None

    async def _connected(self, origin: _Origin) -> Connection:
        loop = asyncio.get_running_loop()

        def free(connection: Connection) -> None:
            connection.idle_since_s = loop.time()
            self._idle.setdefault(origin, {})[connection] = None

        def lost(connection: Connection) -> None:
            self._open.discard(connection)
            self._idle.get(origin, {}).pop(connection, None)

        if origin.secure and self._tls is None:
            self._tls = ssl.create_default_context()
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(free, lost),
                    origin.host,
                    origin.port,
                    ssl=self._tls if origin.secure else None,
                )
        except TimeoutError:
            raise HttpError(f"no connection to {origin.host}:{origin.port} within {_CONNECT_S:g} s") from None
        except OSError as error:
            # Of a name with several addresses, the error of each is in the text only.
            refused = isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(error)
            raise HttpError(f"no connection to {origin.host}:{origin.port}: {error}", refused=refused) from error
        self._open.add(connection)
        return connection


@lru_cache(maxsize=1024)
def _parts(url: str) -> tuple[_Origin, str, str]:
    """Origin, Host header and path of a URL.

    Raises:
        HttpError: it is none that can be asked.
    """
    try:
        split = urlsplit(url)
        secure = split.scheme == "https"
        origin = _Origin(host=split.hostname or "", port=split.port or (443 if secure else 80), secure=secure)
    except ValueError as error:
        raise HttpError(f"{url!r} is no URL: {error}") from error
    if split.scheme not in ("http", "https") or not origin.host or not url.isascii() or not url.isprintable():
        raise HttpError(f"{url!r} is no URL of http or https")
    path = (split.path or "/") + (f"?{split.query}" if split.query else "")
    if " " in path:
        raise HttpError(f"{url!r} has a space in its path")
    return origin, split.netloc.rpartition("@")[2], path


def _request(method: str, path: str, host: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1\r\nhost: {host}"]
    for name, value in headers.items():
        if "\n" in value or "\r" in value:
            raise HttpError(f"the header {name} has a line break in its value")
        lines.append(f"{name}: {value}")
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
    return head if body is None else head + body


def _value(url: str, reply: Reply) -> Any:
    if reply.status != 200:
        raise HttpError(f"{url} answered {reply.status}", status=reply.status)
    try:
        return msgspec.json.decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise HttpError(f"{url} answered no JSON", status=reply.status) from None
