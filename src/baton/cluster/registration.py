"""A server tells a router of itself, again and again, for as long as it serves."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec

from baton.core.errors import ConfigError
from baton.obs.log import get_logger
from baton.router.http import Http, HttpError

_log = get_logger(__name__)
_RENEW_S = 5.0  # a third of a router's lease
_ANSWER_S = 2.0
_EVERYWHERE = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Where to register, and as what.

    Attributes:
        router: URL of the router, such as http://10.0.0.1:8080.
        router_key: the key that the router asks for; None: none.
        api_key: the key that this server asks for; None: none.
        host: how the router reaches this server; None: see `reachable_host`.

    Raises:
        ConfigError: router is no such URL.
    """

    router: str
    router_key: str | None = None
    api_key: str | None = None
    host: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.router)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--router must be a URL such as http://10.0.0.1:8080, got {self.router!r}")


async def keep_registered(registration: Registration, url: str) -> None:
    """Register every few seconds until cancelled; then take the registration back.

    Args:
        url: where this server listens.
    """
    host = registration.host
    if host is None:
        host = await asyncio.to_thread(reachable_host, url, registration.router)
    async with Http() as http:
        registrar = _Registrar(registration, with_host(url, host), http)
        try:
            while True:
                await registrar.renew()
                await asyncio.sleep(_RENEW_S)
        finally:
            await registrar.leave()


class _Registrar:
    def __init__(self, registration: Registration, url: str, http: Http) -> None:
        self._workers = registration.router.rstrip("/") + "/workers"
        self._url = url
        self._http = http
        key, own = registration.router_key, registration.api_key
        self._headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
        self._body = msgspec.json.encode({"url": url, "lease": True, **({"api_key": own} if own else {})})
        self._trouble: str | None = ""  # None: registered; what was logged last

    async def renew(self) -> None:
        """Log what changes: the router may be away, and come back."""
        trouble = await self._ask("POST", self._workers, self._body)
        if trouble == self._trouble:
            return
        self._trouble = trouble
        if trouble is None:
            _log.info("registered at %s as %s", self._workers, self._url)
        else:
            _log.warning("cannot register at %s: %s; trying again every %.0f s", self._workers, trouble, _RENEW_S)

    async def leave(self) -> None:
        """The router places nothing here any more. What it has here goes on."""
        await self._ask("DELETE", f"{self._workers}/{quote(self._url, safe='')}")

    async def _ask(self, method: str, url: str, body: bytes | None = None) -> str | None:
        """None, or what went wrong."""
        try:
            reply = await self._http.fetch(method, url, timeout_s=_ANSWER_S, headers=self._headers, body=body)
        except HttpError as error:
            return str(error)
        return None if reply.status < 300 else f"{reply.status} {reply.body[:200].decode(errors='replace')}"


def reachable_host(url: str, router: str) -> str:
    """The host that `url` names; where that is every address of this machine, the one that the router sees."""
    host = urlsplit(url).hostname or ""
    if host not in _EVERYWHERE:
        return host
    parts = urlsplit(router)
    try:
        family, kind, _, _, address = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def with_host(url: str, host: str) -> str:
    """The URL with another host in it."""
    parts = urlsplit(url)
    shown = f"[{host}]" if ":" in host else host
    return urlunsplit(parts._replace(netloc=f"{shown}:{parts.port}"))
