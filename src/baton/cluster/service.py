"""A server and its engine as one service: start, signals, drain, restart, exit code."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
import uvloop

from baton.cluster.launch import EngineLaunch
from baton.cluster.local import LocalEngine
from baton.cluster.restarts import RestartBudget
from baton.core.errors import BatonError, ConfigError
from baton.obs.log import get_logger
from baton.server.engine_client import EngineClient

_log = get_logger(__name__)
_BACKLOG = 2048
_FILES = 65536
_KEEP_ALIVE_S = 65  # longer than clients keep idle connections, so that none is closed under a request
_POLL_S = 0.02
_RETRY_S = 1.0  # between a start that failed and the next
_NOTICE_S = 1.0  # after the engine's end: time for errors to reach clients and for /health to be seen
_FLUSH_S = 5.0  # for answers that are complete but not read yet
_FORCED_FLUSH_S = 0.5

OK, FAILED = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Of the service around the HTTP application.

    Attributes:
        host, port: port 0 takes a free one.
        max_restarts: of the engine in ten minutes; 0: its end ends the service.
        drain_timeout_s: how long running requests may take after the first signal.
    """

    host: str
    port: int
    max_restarts: int
    drain_timeout_s: float


Front = Callable[[EngineClient], AbstractAsyncContextManager[Any]]


def run_service(config: ServiceConfig, launch: EngineLaunch, front: Front) -> int:
    """Start the engine, serve until a signal or the engine's end; returns the exit code.

    SIGTERM or SIGINT drains: new requests are refused, running ones may end. A second one aborts what runs.

    Args:
        front: gets the client of a ready engine; its context is the ASGI application, and lasts as long as it serves.

    Returns:
        0 after a drain, 1 after the engine's end or a second signal.

    Raises:
        UserError: the port is taken, or the engine cannot start for a reason that the user can mend.
        EngineDeadError: the engine cannot start. Nothing is left running after either.
    """
    _raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Service(config, launch, front).run())


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Service:
    def __init__(self, config: ServiceConfig, launch: EngineLaunch, front: Front) -> None:
        self._config = config
        self._front = front
        self._engine = LocalEngine(launch)
        self._restarts = RestartBudget(config.max_restarts)
        self._stop = asyncio.Event()
        self._force = asyncio.Event()

    async def run(self) -> int:
        listener = _bind(self._config.host, self._config.port)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            if not await self._unless_stopped(self._engine.start()):
                return OK
            async with self._front(self._engine.client) as application:
                return await self._serve(listener, application)
        finally:
            await self._engine.stop()
            listener.close()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            _log.warning("%s again: aborting", number.name)
            self._force.set()
        else:
            _log.info("%s: draining for up to %.0f s", number.name, self._config.drain_timeout_s)
            self._stop.set()

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Finish `work`, or give it up when a signal comes; returns whether it finished."""
        task = asyncio.create_task(work)
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
                return True
            return False
        finally:
            stop.cancel()
            await _cancelled(task)

    async def _serve(self, listener: socket.socket, application: Any) -> int:
        server = _Server(
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
        _listen(listener)
        gc.collect()
        gc.freeze()  # what was loaded stays: later collections need not walk it
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            if serving.done():
                serving.result()
                raise ConfigError("the HTTP application did not start; the log says why")
            await asyncio.sleep(_POLL_S)
        print(f"Baton is ready at {_url(listener)}", flush=True)
        return await self._until_end(server, serving)

    async def _until_end(self, server: uvicorn.Server, serving: asyncio.Task[None]) -> int:
        """Until the service has to end, or HTTP ends without being told to; returns the exit code."""
        supervising = asyncio.create_task(self._supervise())
        try:
            await asyncio.wait({serving, supervising}, return_when=asyncio.FIRST_COMPLETED)
            if not supervising.done():
                error = None if serving.cancelled() else serving.exception()
                _log.error("the HTTP server has ended by itself; ending", exc_info=error)
                return FAILED
        finally:
            await _cancelled(supervising)
        code = supervising.result()
        await self._close(server, serving)
        return code

    async def _supervise(self) -> int:
        """Until the service has to end; returns its exit code."""
        while True:
            await _first(self._engine.ended, self._stop)
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
                return await self._unless_stopped(self._engine.start())
            except BatonError as error:
                _log.error("the engine did not start: %s", error)
                await self._engine.ended.wait()
                await asyncio.sleep(_RETRY_S)
        _log.error("the engine ended too often; ending")
        return False

    async def _drain(self) -> int:
        client = self._engine.client
        client.drain("the server is shutting down")
        deadline_s = time.monotonic() + self._config.drain_timeout_s
        while client.num_live:
            if self._engine.ended.is_set():
                return FAILED
            if self._force.is_set() or time.monotonic() >= deadline_s:
                _log.warning("aborting %d requests", client.num_live)
                client.abort_all("the server was shut down before the answer was complete")
                break
            await asyncio.sleep(_POLL_S)
        return FAILED if self._force.is_set() else OK

    async def _close(self, server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
        """End the HTTP server once its answers have been sent, or their readers are too slow."""
        server.should_exit = True
        deadline_s = time.monotonic() + _FLUSH_S
        while not serving.done():
            if self._force.is_set():
                deadline_s = min(deadline_s, time.monotonic() + _FORCED_FLUSH_S)
            if time.monotonic() >= deadline_s:
                server.force_exit = True
            await asyncio.wait({serving}, timeout=0.1)
        serving.result()


def _raise_file_limit() -> None:
    """Every connection is an open file; the usual soft limit of 1024 is for programs that call select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _first(*events: asyncio.Event) -> None:
    """Wait until any is set."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task, if it runs, and wait for its end."""
    task.cancel()
    await asyncio.wait({task})


def _bind(host: str, port: int) -> socket.socket:
    """A socket that holds the port but does not listen yet: clients are refused until the engine is ready.

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
