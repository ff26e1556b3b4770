"""Engines that leave while there is load: told by the router's API, or by SIGTERM. Nothing is lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.chaos.client import Load
from tests.chaos.conftest import Known
from tests.chaos.models import SMALL
from tests.chaos.rest import held, wait_for_nothing
from tests.chaos.routed import Routed, routed
from tests.transfer.servers import EngineServer

pytestmark = pytest.mark.torch

CLIENTS, DEADLINE_S = 8, 60.0
GONE_WITHIN_S = 30.0
BETWEEN = 25  # requests that end between two departures


async def _ended(load: Load, count: int) -> None:
    """Until so many more requests have ended."""
    count += len(load.seen)
    async with asyncio.timeout(DEADLINE_S):
        while len(load.seen) < count:
            await asyncio.sleep(0.05)


async def _until(found: Callable[[], bool]) -> None:
    async with asyncio.timeout(GONE_WITHIN_S):
        while not await asyncio.to_thread(found):
            await asyncio.sleep(0.05)


async def _drain(fleet: Routed, worker: EngineServer) -> None:
    """Through the router: it gets nothing new, and holds nothing once it is drained. Then it leaves, and comes back."""
    name = worker.url.removeprefix("http://")
    async with httpx.AsyncClient(base_url=fleet.url, timeout=5) as http:
        told = await http.post(f"/workers/{name}/drain")
        assert (told.status_code, told.json()["state"]) == (200, "draining"), told.text
        await _until(lambda: fleet.row(worker)["drained"])
        left, _ = await asyncio.to_thread(wait_for_nothing, lambda: held(name, worker.stats()), 1)
        assert not left
        assert (await http.delete(f"/workers/{name}")).status_code == 204
        assert (await http.post("/workers", json={"url": worker.url})).status_code == 200
        await _until(lambda: fleet.row(worker)["state"] == "ready")


async def _terminate(worker: EngineServer) -> None:
    worker.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(worker.exit, GONE_WITHIN_S) == 0


async def _departures(fleet: Routed, known: Known) -> Load:
    """Each way to leave, by an engine of each role, one after the other."""
    load = Load(fleet.url, known.asks, clients=CLIENTS, seed=1, deadline_s=DEADLINE_S)
    load.start()
    for leave in (_drain(fleet, fleet.prefill[0]), _drain(fleet, fleet.decode[0])):
        await _ended(load, BETWEEN)
        await leave
    for leave in (_terminate(fleet.prefill[0]), _terminate(fleet.decode[0])):
        await _ended(load, BETWEEN)
        await leave
    await _ended(load, BETWEEN)
    await load.stop()
    return load


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_drains_under_load(model: Path, known: Known, mode: str) -> None:
    with routed(model, mode, 2, 2, *SMALL) as fleet:
        found = known.judge(asyncio.run(_departures(fleet, known)).seen)
        lost = {name: count for name, count in found.verdicts.items() if name not in ("right", "left")}
        assert not lost, (lost, found.messages, found.failures)
        left, _ = wait_for_nothing(fleet.held, 10)
        assert not left
