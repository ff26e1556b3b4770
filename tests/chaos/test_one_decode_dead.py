"""One of two decode engines is killed under load and stays dead: at least 95 % of the requests still end well."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chaos.client import Load
from tests.chaos.conftest import Known
from tests.chaos.models import SMALL
from tests.chaos.rest import wait_for_nothing
from tests.chaos.routed import Routed, kill_server, routed
from tests.chaos.verdicts import Verdict

pytestmark = pytest.mark.torch

ENOUGH = 0.95
CLIENTS, DEADLINE_S = 8, 60.0
LEASE_S = 5.0  # so long P keeps what it offered to an engine that died before it said that it has read it
BEFORE, AFTER = 20, 100  # requests that end before and after the death


async def _load(fleet: Routed, known: Known) -> Load:
    load = Load(fleet.url, known.asks, clients=CLIENTS, seed=1, deadline_s=DEADLINE_S)
    load.start()
    await _until_ended(load, BEFORE)
    await asyncio.to_thread(kill_server, fleet.decode[0])
    await _until_ended(load, len(load.seen) + AFTER)
    await load.stop()
    return load


async def _until_ended(load: Load, count: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while len(load.seen) < count:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_a_dead_decode_engine(model: Path, known: Known, mode: str) -> None:
    with routed(model, mode, 2, 2, *SMALL, "--handoff-lease-s", str(LEASE_S)) as fleet:
        found = known.judge(asyncio.run(_load(fleet, known)).seen)
        assert not found.num_bad, found.failures
        assert found.verdicts.get(Verdict.RIGHT.value, 0) > AFTER / 2
        assert found.right_share >= ENOUGH, found.messages
        assert fleet.row(fleet.decode[0])["state"] == "down"
        left, _ = wait_for_nothing(fleet.held, LEASE_S + 10)
        assert not left, left
