"""The bench as an HTTP client. The only file of the bench that knows aiohttp."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from baton.core.errors import ConfigError

_KEPT_S = 4.0
"""An idle connection is closed before uvicorn closes its end (after 5 s), so that no request meets a closed one."""
_CONNECT_S = 30.0
_READ_BYTES = 1 << 20
_SHOWN = 300


class NoAnswerError(Exception):
    """No answer, another status than 200, or not what was asked for."""


class Client:
    """Connections to one server. Used on one event loop.

    Args:
        timeout_s: for a whole answer.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 600.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"a server's URL begins with http:// or https://, got {url!r}")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._timeout_s = timeout_s
        self._made: ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._made is not None:
            await self._made.close()

    async def stream(
        self, path: str, body: bytes, feed: Callable[[bytes, float], None], headers: Mapping[str, str] | None = None
    ) -> str:
        """POST a body and hand on its answer's bytes with the time they came (time.perf_counter).

        Returns:
            "" or what went wrong; never raises for what a server or a network does.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                sent = self._headers if headers is None else {**self._headers, **headers}
                async with self._session.post(self.url + path, data=body, headers=sent) as response:
                    if response.status != 200:
                        return f"HTTP {response.status}: {(await response.text(errors='replace'))[:_SHOWN]}"
                    while data := await response.content.readany():
                        feed(data, time.perf_counter())
        except TimeoutError:
            return f"not over after {self._timeout_s:g} s"
        except (ClientError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    async def ask(
        self,
        method: str,
        path: str,
        value: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """A whole JSON answer.

        Raises:
            NoAnswerError: none, another status than 200, or no JSON.
        """
        body = None if value is None else msgspec.json.encode(value)
        where = self.url + path
        try:
            async with asyncio.timeout(self._timeout_s if timeout_s is None else timeout_s):
                sent = {**self._headers, **(headers or {})}
                async with self._session.request(method, where, data=body, headers=sent) as response:
                    data = await response.read()
        except TimeoutError:
            raise NoAnswerError(f"{where} did not answer in time") from None
        except (ClientError, OSError) as error:
            raise NoAnswerError(f"{where}: {error}") from error
        if response.status != 200:
            raise NoAnswerError(f"{where}: HTTP {response.status}: {data[:_SHOWN].decode(errors='replace')}")
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise NoAnswerError(f"{where} answered no JSON") from None

    @property
    def _session(self) -> ClientSession:
        if self._made is None:
            self._made = ClientSession(
                connector=TCPConnector(limit=0, keepalive_timeout=_KEPT_S),
                cookie_jar=DummyCookieJar(),
                read_bufsize=_READ_BYTES,
                timeout=ClientTimeout(total=None, sock_connect=_CONNECT_S),
            )
        return self._made
