"""Engines and a router before them, started one by one and not supervised: what a test ends stays ended."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import msgspec

from tests.chaos.models import FLOAT32
from tests.chaos.rest import get_json, held
from tests.cluster.serving import Server, alive, until
from tests.transfer.servers import EngineServer

READY_WITHIN_S = 30.0


class Router(Server):
    """`baton route` on a free port of the loopback."""

    def __init__(self, mode: str, prefill: Sequence[EngineServer], decode: Sequence[EngineServer]) -> None:
        workers = [part for each in prefill for part in ("--prefill", each.url)]
        workers += [part for each in decode for part in ("--decode", each.url)]
        place = ["--host", "127.0.0.1", "--port", "0", "--mode", mode]
        super().__init__([sys.executable, "-m", "baton", "route", *workers, *place])

    def ready(self) -> Self:
        """Wait until it takes requests: it has looked at its workers."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("Baton is ready at http://"), (line, self.stderr())
        self.url = line.split()[-1]
        until(lambda: self.status("/ready") == 200, READY_WITHIN_S)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """A fleet. prefill, decode: servers, which the router knows by their URLs."""

    router: Router
    prefill: tuple[EngineServer, ...]
    decode: tuple[EngineServer, ...]

    @property
    def url(self) -> str:
        """Of the router."""
        return self.router.url

    def pools(self, server: EngineServer) -> dict[str, int]:
        """What a server holds."""
        found: dict[str, int] = server.stats()["pools"]
        return found

    def held(self) -> list[str]:
        """What is not free on any engine that lives, in words."""
        living = [server for server in (*self.prefill, *self.decode) if alive(server.process.pid)]
        return [words for server in living for words in held(server.url, server.stats())]

    def metric(self, name: str) -> float:
        """One figure of the router without labels."""
        lines = httpx.get(self.url + "/metrics", timeout=5).text.splitlines()
        (value,) = [line.split()[1] for line in lines if line.startswith(name + " ")]
        return float(value)

    def row(self, server: EngineServer) -> dict[str, Any]:
        """What the router says of a worker."""
        (found,) = [row for row in get_json(self.url + "/workers")["workers"] if row["url"] == server.url]
        return dict(found)


@contextmanager
def routed(model: Path, mode: str, num_prefill: int, num_decode: int, *flags: str) -> Iterator[Routed]:
    """A fleet whose engines have these flags."""
    roles = ["prefill"] * num_prefill + ["decode"] * num_decode
    with ExitStack() as stack:
        started = [stack.enter_context(EngineServer(model, *FLOAT32, "--role", role, *flags)) for role in roles]
        servers = [server.ready() for server in started]
        prefill, decode = tuple(servers[:num_prefill]), tuple(servers[num_prefill:])
        router = stack.enter_context(Router(mode, prefill, decode)).ready()
        yield Routed(router=router, prefill=prefill, decode=decode)


def kill_server(server: EngineServer) -> None:
    """SIGKILL a server; its engine ends with it. Returns when both have ended."""
    engine = server.engine()
    os.kill(server.process.pid, signal.SIGKILL)
    until(lambda: not alive(server.process.pid) and not alive(engine))


class Begun:
    """A request that has been sent, on a connection that can be closed at any moment. A context."""

    def __init__(self, url: str, body: dict[str, Any], path: str = "/v1/completions") -> None:
        content = msgspec.json.encode(body)
        host = urlsplit(url)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        self._socket = socket.create_connection((host.hostname, host.port), timeout=READY_WITHIN_S)
        self._socket.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def read(self) -> bytes:
        """What has come since."""
        return self._socket.recv(65536)

    def silent(self) -> bool:
        """Whether nothing has come yet."""
        self._socket.setblocking(False)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        finally:
            self._socket.setblocking(True)

    def leave(self, *, reset: bool) -> None:
        """Close the connection, by FIN or by RST."""
        with closing(self._socket):
            if reset:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
