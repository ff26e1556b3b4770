"""/workers over a fleet of fake workers: what it takes, what it says, whom it lets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.responses import PlainTextResponse

from baton.core.handoff import Role, TransferMode
from baton.router.config import RouterConfig
from baton.router.fleet import Fleet
from baton.router.http import Http
from baton.router.workers_api import with_workers
from tests.router.fake_worker import FakeWorker, baton_stats

CONFIG = RouterConfig(health_interval_s=0.02, health_timeout_s=1.0)
DEAD = "http://127.0.0.1:9"


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await body()

    asyncio.run(bounded())


@asynccontextmanager
async def api(*admin_keys: str, peer: str = "127.0.0.1") -> AsyncIterator[tuple[httpx.AsyncClient, Fleet]]:
    async with Http() as http, Fleet(CONFIG, http) as fleet:
        app = with_workers(PlainTextResponse("elsewhere"), fleet, admin_keys)
        transport = httpx.ASGITransport(app=app, client=(peer, 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
            yield client, fleet


async def until(true: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(8):
        while not (found := await true()):
            await asyncio.sleep(0.01)
        return found


def test_the_life_of_a_worker() -> None:
    async def body() -> None:
        async with FakeWorker({"/stats": baton_stats("decode")}) as worker, api() as (client, _fleet):
            added = await client.post("/workers", json={"url": worker.url + "/", "role": "decode"})
            assert added.status_code == 200 and added.json()["id"] == worker.url
            assert added.headers["x-request-id"]

            async def ready() -> Any:
                (row,) = (await client.get("/workers")).json()["workers"]
                return row if row["state"] == "ready" else None

            row = await until(ready)
            assert (row["url"], row["role"], row["leased"], row["drained"]) == (worker.url, "decode", False, False)
            assert row["facts"]["fingerprint"] == "f"
            draining = await client.post(f"/workers/{worker.url}/drain")
            assert (draining.status_code, draining.json()["state"]) == (200, "draining")
            assert draining.json()["drained"] is True  # nothing runs there
            again = await client.post("/workers", json={"url": worker.url, "role": "decode"})
            assert again.json()["state"] == "ready"
            gone = await client.delete(f"/workers/{quote(worker.url, safe='')}")
            assert gone.status_code == 204 and gone.content == b""
            assert (await client.get("/workers")).json() == {"workers": []}
            assert (await client.get("/elsewhere")).text == "elsewhere"

    run(body)


def test_removal_drains_first_unless_it_is_now() -> None:
    async def body() -> None:
        stats = baton_stats("prefill", pools={"num_leased": 1})
        async with FakeWorker({"/stats": stats}) as worker, api() as (client, fleet):
            await client.post("/workers", json={"url": worker.url, "lease": True})
            await fleet.members.wait_seen(5)
            name = worker.url.removeprefix("http://")
            waiting = await client.delete(f"/workers/{name}")
            assert waiting.status_code == 202
            assert (waiting.json()["state"], waiting.json()["leased"]) == ("draining", True)
            assert (await client.delete(f"/workers/{name}", params={"now": "1"})).status_code == 204
            missing = await client.delete(f"/workers/{name}")
            assert missing.status_code == 404 and name in missing.json()["error"]["message"]

    run(body)


def test_a_third_party_worker_with_its_peer_and_its_key() -> None:
    async def body() -> None:
        async with api() as (client, fleet):
            peer = {"engine_id": "e", "host": "h", "port": 5600, "tp_size": 2}
            given = {"url": DEAD, "role": "prefill", "transfer_mode": "push", "api_key": "sk-secret", "peer": peer}
            added = await client.post("/workers", json=given)
            assert added.status_code == 200 and "sk-secret" not in added.text
            spec = fleet.members.find(DEAD).spec
            assert (spec.role, spec.transfer_mode, spec.api_key) == (Role.PREFILL, TransferMode.PUSH, "sk-secret")
            assert spec.peer and (spec.peer.engine_id, spec.peer.port, spec.peer.tp_size) == ("e", 5600, 2)

    run(body)


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"", "body"),
        (b"[]", "body"),
        (b'{"url": 3}', "body"),
        (b'{"role": "prefill"}', "body"),
        (b'{"url": "http://h:1", "role": "boss"}', "body"),
        (b'{"url": "http://h:1", "unknown": 1}', "body"),
        (b'{"url": "http://h:1", "peer": {"host": "h"}}', "body"),
        (b'{"url": "h:1"}', "url"),
        (b'{"url": "ftp://h:1"}', "url"),
        (b'{"url": "http://"}', "url"),
        (b'{"url": "http://h:99999"}', "url"),
        (b'{"url": "http://h:1/v1"}', "url"),
        (b'{"url": "http://h:1?x=1"}', "url"),
        (b'{"url": "http://u:p@h:1"}', "url"),
    ],
)
def test_what_is_no_worker(raw: bytes, param: str) -> None:
    async def body() -> None:
        async with api() as (client, fleet):
            answer = await client.post("/workers", content=raw)
            assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text
            assert len(fleet.members) == 0

    run(body)


def test_sizes_and_methods() -> None:
    async def body() -> None:
        async with api() as (client, _):
            assert (await client.post("/workers", content=b" " * (1 << 17))).status_code == 413
            assert (await client.put("/workers")).status_code == 405
            assert (await client.post("/workers/x/drain")).status_code == 404

    run(body)


ACTS = [("POST", "/workers"), ("GET", "/workers"), ("POST", f"/workers/{DEAD}/drain"), ("DELETE", f"/workers/{DEAD}")]


@pytest.mark.parametrize(("method", "path"), ACTS)
def test_with_admin_keys_only_they_may(method: str, path: str) -> None:
    async def body() -> None:
        async with api("k1", "k2") as (client, _fleet):
            for given in (None, "Bearer k", "Basic k1", "Bearer k1k2", "Bearer ü"):
                headers = {} if given is None else {"authorization": given.encode("latin-1")}
                answer = await client.request(method, path, headers=headers, content=b"{}")  # type: ignore[arg-type]
                assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
            allowed = await client.request(method, path, headers={"authorization": "bearer k2"}, content=b"{}")
            assert allowed.status_code in (200, 400, 404)

    run(body)


@pytest.mark.parametrize(("method", "path"), ACTS)
def test_without_admin_keys_only_programs_on_this_machine_may(method: str, path: str) -> None:
    async def body() -> None:
        for peer, status in (("10.0.0.7", 403), ("::ffff:10.0.0.7", 403), ("", 403), ("::1", 200), ("127.0.0.9", 200)):
            async with api(peer=peer) as (client, _):
                answer = await client.request(method, path, content=b"{}")
                assert answer.status_code == 403 if status == 403 else answer.status_code in (200, 400, 404), peer
        async with api() as (client, _):
            answer = await client.request(method, path, content=b"{}", headers={"origin": "http://router"})
            assert answer.status_code == 403  # a browser: any page may send a POST to here

    run(body)
