"""A router as a service: start, signals, drain, exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import uvloop

from baton.cluster.http import HttpServer, bind, raise_file_limit
from baton.cluster.signals import Signals
from baton.cluster.waiting import first
from baton.obs.log import get_logger
from baton.router.app import create_app
from baton.router.config import RouterConfig
from baton.router.door import Door
from baton.router.fleet import Fleet
from baton.router.http import Http
from baton.router.page import FleetPage
from baton.router.record import Journal
from baton.router.tenants import Tenants, load_tenants
from baton.router.worker import WorkerSpec
from baton.router.workers_api import with_workers

_log = get_logger(__name__)
_OK, _FAILED = 0, 1
_TELL_S = 1.0  # for clients to be told that their requests are broken off


def run_router(config: RouterConfig, specs: Iterable[WorkerSpec]) -> int:
    """Serve until a signal; returns the exit code.

    SIGTERM or SIGINT drains: new requests are refused, running ones may end. A second one breaks those off.

    Args:
        specs: workers that are there until they are removed; those that are down may come later.

    Returns:
        0 after a drain, 1 when requests had to be broken off.

    Raises:
        ConfigError: the port is taken, or an option cannot be.
    """
    raise_file_limit()
    tenants = None if config.limits_file is None else load_tenants(config.limits_file)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(config, tuple(specs), tenants))


async def _run(config: RouterConfig, specs: tuple[WorkerSpec, ...], tenants: Tenants | None) -> int:
    listener = bind(config.host, config.port)
    signals = Signals(config.drain_timeout_s)
    signals.listen()
    try:
        async with Http() as looks, Http() as http, Fleet(config, looks, specs) as fleet:
            journal = Journal()
            page = FleetPage(journal, fleet.panel, looks)
            app = create_app(config, fleet, journal, http, tenants=tenants, extra_routes=page.routes)
            door = Door(with_workers(app, fleet, config.admin_keys))
            await fleet.members.wait_seen(config.health_timeout_s)
            return await _serve(HttpServer(door, listener), door, page, signals, config.drain_timeout_s)
    finally:
        listener.close()


async def _serve(server: HttpServer, door: Door, page: FleetPage, signals: Signals, drain_timeout_s: float) -> int:
    await server.start()
    await first(signals.stop.wait(), asyncio.shield(server.serving))
    if server.serving.done():
        error = None if server.serving.cancelled() else server.serving.exception()
        _log.error("the HTTP server has ended by itself; ending", exc_info=error)
        return _FAILED
    door.close()
    page.close()
    await first(door.empty.wait(), signals.force.wait(), asyncio.sleep(drain_timeout_s))
    code = _OK if door.empty.is_set() else _FAILED
    if code == _FAILED:
        _log.warning("breaking off %d requests", door.num_inside)
        signals.force.set()
        door.break_off()
        await first(door.empty.wait(), asyncio.sleep(_TELL_S))
    await server.close(signals.force)
    return code
