"""A server and its engine as one service: start, signals, drain, restart, exit code."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import uvloop

from baton.cluster.http import HttpServer, bind, raise_file_limit
from baton.cluster.launch import EngineLaunch
from baton.cluster.local import LocalEngine
from baton.cluster.restarts import RestartBudget
from baton.cluster.signals import Signals
from baton.cluster.waiting import cancelled, first, unless
from baton.core.errors import BatonError
from baton.obs.log import get_logger
from baton.server.engine_client import EngineClient

_log = get_logger(__name__)
_POLL_S = 0.02
_RETRY_S = 1.0  # between a start that failed and the next
_NOTICE_S = 1.0  # after the engine's end: time for errors to reach clients and for /health to be seen

OK, FAILED = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Of the service around the HTTP application.

    Attributes:
        host, port: port 0 takes a free one.
        max_restarts: of the engine in ten minutes; 0: its end ends the service.
        drain_timeout_s: how long running requests, and other engines, may take after the first signal.
    """

    host: str
    port: int
    max_restarts: int
    drain_timeout_s: float


Front = Callable[[EngineClient], AbstractAsyncContextManager[Any]]


Announce = Callable[[str], Coroutine[Any, Any, None]]


def run_service(config: ServiceConfig, launch: EngineLaunch, front: Front, announce: Announce | None = None) -> int:
    """Start the engine, serve until a signal or the engine's end; returns the exit code.

    SIGTERM or SIGINT drains: new requests are refused, running ones may end, and other engines may fetch what is kept
    for them. A second one aborts what runs.

    Args:
        front: gets the client of a ready engine; its context is the ASGI application, and lasts as long as it serves.
        announce: gets the URL and tells others that this service takes requests; cancelled when it no longer does.

    Returns:
        0 after a drain, 1 after the engine's end or a second signal.

    Raises:
        UserError: the port is taken, or the engine cannot start for a reason that the user can mend.
        EngineDeadError: the engine cannot start. Nothing is left running after either.
    """
    raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Service(config, launch, front, announce).run())


class _Service:
    def __init__(self, config: ServiceConfig, launch: EngineLaunch, front: Front, announce: Announce | None) -> None:
        self._config = config
        self._front = front
        self._announce = announce
        self._announcing: asyncio.Task[None] | None = None
        self._engine = LocalEngine(launch)
        self._restarts = RestartBudget(config.max_restarts)
        self._signals = Signals(config.drain_timeout_s)
        self._stop, self._force = self._signals.stop, self._signals.force

    async def run(self) -> int:
        listener = bind(self._config.host, self._config.port)
        self._signals.listen()
        try:
            if not await unless(self._stop, self._engine.start()):
                return OK
            async with self._front(self._engine.client) as application:
                return await self._serve(listener, application)
        finally:
            await self._engine.stop()
            listener.close()

    async def _serve(self, listener: socket.socket, application: Any) -> int:
        server = HttpServer(application, listener)
        await server.start()
        if self._announce is not None:
            self._announcing = asyncio.create_task(self._announce(server.url))
        return await self._until_end(server)

    async def _until_end(self, server: HttpServer) -> int:
        """Until the service has to end, or HTTP ends without being told to; returns the exit code."""
        supervising = asyncio.create_task(self._supervise())
        try:
            await asyncio.wait({server.serving, supervising}, return_when=asyncio.FIRST_COMPLETED)
            if not supervising.done():
                error = None if server.serving.cancelled() else server.serving.exception()
                _log.error("the HTTP server has ended by itself; ending", exc_info=error)
                return FAILED
        finally:
            await cancelled(supervising)
            await self._unannounce()
        code = supervising.result()
        await server.close(self._force)
        return code

    async def _supervise(self) -> int:
        """Until the service has to end; returns its exit code."""
        while True:
            await first(self._engine.ended.wait(), self._stop.wait())
            if not self._engine.ended.is_set():
                return await self._drain()
            if self._stop.is_set():
                return FAILED
            if self._config.max_restarts == 0:
                _log.error("the engine is gone; ending (see --restart-engine)")
                await asyncio.sleep(_NOTICE_S)
                return FAILED
            if not await self._restart():
                return FAILED

    async def _restart(self) -> bool:
        while self._restarts.take(time.monotonic()):
            _log.warning("starting the engine again")
            try:
                return await unless(self._stop, self._engine.start())
            except BatonError as error:
                _log.error("the engine did not start: %s", error)
                await self._engine.ended.wait()
                await asyncio.sleep(_RETRY_S)
        _log.error("the engine ended too often; ending")
        return False

    async def _unannounce(self) -> None:
        if self._announcing is not None:
            await cancelled(self._announcing)

    async def _drain(self) -> int:
        await self._unannounce()
        client = self._engine.client
        client.drain("the server is shutting down")
        deadline_s = time.monotonic() + self._config.drain_timeout_s
        while client.num_live or client.num_kept_blocks:
            if self._engine.ended.is_set():
                return FAILED
            if self._force.is_set() or time.monotonic() >= deadline_s:
                _log.warning(
                    "aborting %d requests; other engines lose %d blocks", client.num_live, client.num_kept_blocks
                )
                client.abort_all("the server was shut down before the answer was complete")
                break
            await asyncio.sleep(_POLL_S)
        return FAILED if self._force.is_set() else OK
