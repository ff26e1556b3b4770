"""The router's application over real HTTP, in a thread, over any fleet."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from baton.router.app import create_app
from baton.router.config import RouterConfig
from baton.router.fleet import Fleet
from baton.router.http import Http
from baton.router.record import Journal, RequestRecord
from baton.router.worker import WorkerSpec
from tests.cluster.serving import until

WAIT_S = 60.0
MakeFleet = Callable[[RouterConfig, Http], AbstractAsyncContextManager[Any]]


@dataclass
class Routed:
    """A running router. fleet, journal: belong to its event loop; use `call` where it matters."""

    url: str
    http: httpx.Client
    fleet: Any
    journal: Journal
    loop: asyncio.AbstractEventLoop

    def call(self, work: Awaitable[Any]) -> Any:
        """Run something on the router's loop."""

        async def run() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(WAIT_S)

    @property
    def last(self) -> RequestRecord:
        """Of the request that ended last, once none runs: an answer may be read before its record is complete."""
        until(lambda: not self.journal.live)
        return self.journal.ended[-1]


@contextmanager
def routed(make_fleet: MakeFleet, config: RouterConfig | None = None) -> Iterator[Routed]:
    """A router on a free port of the loopback."""
    config = config or RouterConfig(port=0)
    started: list[Routed] = []
    ready = threading.Event()
    servers: list[uvicorn.Server] = []

    async def serve() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        async with Http() as http, make_fleet(config, http) as fleet:
            journal = Journal()
            app = create_app(config, fleet, journal, http)
            server = uvicorn.Server(uvicorn.Config(app, http="httptools", log_config=None, access_log=False))
            servers.append(server)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            limits = httpx.Limits(max_connections=None)
            client = httpx.Client(base_url=url, timeout=WAIT_S, limits=limits)
            started.append(Routed(url, client, fleet, journal, asyncio.get_running_loop()))
            ready.set()
            await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(WAIT_S)
    try:
        yield started[0]
    finally:
        started[0].http.close()
        servers[0].should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()


def real_fleet(specs: Sequence[WorkerSpec]) -> MakeFleet:
    """A fleet of running servers, entered when all of them have answered."""

    @asynccontextmanager
    async def make(config: RouterConfig, http: Http) -> Any:
        async with Fleet(config, http, specs) as fleet:
            async with asyncio.timeout(WAIT_S):
                while len(fleet.ready()) < len(specs):
                    await asyncio.sleep(0.02)
            yield fleet

    return make
