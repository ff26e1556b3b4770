"""The HTTP side of every service: its port, and uvicorn without signal handlers of its own."""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from baton.core.errors import ConfigError

_BACKLOG = 2048
_FILES = 65536
_KEEP_ALIVE_S = 65  # longer than clients keep idle connections, so that none is closed under a request
_POLL_S = 0.02
_FLUSH_S = 5.0  # for answers that are complete but not read yet
_FORCED_FLUSH_S = 0.5


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves one ASGI application.

    Args:
        listener: from `bind`; it listens from `start` on.

    Attributes:
        serving: ends when the server has ended.
    """

    serving: asyncio.Task[None]

    def __init__(self, application: Any, listener: socket.socket) -> None:
        self._listener = listener
        self._server = _Server(
            uvicorn.Config(
                application,
                http="httptools",
                ws="none",
                timeout_keep_alive=_KEEP_ALIVE_S,
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
            )
        )

    @property
    def url(self) -> str:
        """Where it listens."""
        return _url(self._listener)

    async def start(self) -> None:
        """Returns when clients are answered, and says so in one line on stdout.

        Raises:
            ConfigError: the port is taken, or the application does not start.
        """
        _listen(self._listener)
        gc.collect()
        gc.freeze()  # what was loaded stays: later collections need not walk it
        self.serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started:
            if self.serving.done():
                self.serving.result()
                raise ConfigError("the HTTP application did not start; the log says why")
            await asyncio.sleep(_POLL_S)
        print(f"Baton is ready at {self.url}", flush=True)

    async def close(self, force: asyncio.Event) -> None:
        """End it once its answers have been sent, or their readers are too slow.

        Args:
            force: set to wait for them no longer.
        """
        self._server.should_exit = True
        deadline_s = time.monotonic() + _FLUSH_S
        while not self.serving.done():
            if force.is_set():
                deadline_s = min(deadline_s, time.monotonic() + _FORCED_FLUSH_S)
            if time.monotonic() >= deadline_s:
                self._server.force_exit = True
            await asyncio.wait({self.serving}, timeout=0.1)
        self.serving.result()


def raise_file_limit() -> None:
    """Every connection is an open file; the usual soft limit of 1024 is for programs that call select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def bind(host: str, port: int) -> socket.socket:
    """A socket that holds the port but does not listen yet: clients are refused until there is somebody to answer.

    Raises:
        ConfigError: the address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on host {host!r}: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _taken(host, port, error) from error
    return listener


def _listen(listener: socket.socket) -> None:
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _taken(host, port, error) from error
    listener.setblocking(False)


def _taken(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port")


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
