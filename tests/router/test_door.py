"""Who is let in, who is counted, and what those hear that are sent away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from baton.router.door import Door


class App:
    """Begins as it is told, then waits to be let go. `begins`: None, or a content type to begin an answer with."""

    def __init__(self, begins: bytes | None = None) -> None:
        self.begins = begins
        self.go = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", self.begins or b"text/plain")]
        if self.begins is not None:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await self.go.wait()
        if self.begins is None:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"end"})


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 10))


async def ask(door: Door, method: str = "POST", path: str = "/v1/completions") -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=door), base_url="http://router") as client:
        return await client.request(method, path)


async def inside(door: Door) -> asyncio.Task[httpx.Response]:
    task = asyncio.create_task(ask(door))
    while not door.num_inside:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    return task


def test_work_is_counted_and_looks_are_not() -> None:
    async def body() -> None:
        app = App()
        door = Door(app)
        assert door.empty.is_set()
        work = await inside(door)
        look = asyncio.create_task(ask(door, "GET", "/fleet"))
        await asyncio.sleep(0.01)
        assert door.num_inside == 1 and not door.empty.is_set()
        app.go.set()
        assert (await work).text == (await look).text == "end"
        assert door.num_inside == 0 and door.empty.is_set()

    run(body)


def test_a_closed_door_lets_those_inside_end() -> None:
    async def body() -> None:
        app = App()
        door = Door(app)
        work = await inside(door)
        door.close()
        for method, path in (("POST", "/v1/completions"), ("GET", "/ready")):
            refused = await ask(door, method, path)
            assert refused.status_code == 503 and "shutting down" in refused.json()["error"]["message"]
            assert refused.headers["Retry-After"] and refused.headers["Connection"] == "close"
        app.go.set()
        assert (await work).text == "end"
        assert (await ask(door, "GET", "/live")).status_code == 200

    run(body)


def test_those_that_are_sent_away_are_told() -> None:
    async def body() -> None:
        door = Door(App())
        work = await inside(door)
        door.break_off()
        door.break_off()  # once is enough
        answer = await work
        assert answer.status_code == 503 and "shut down before" in answer.json()["error"]["message"]
        assert door.empty.is_set()

        door = Door(App(begins=b"text/event-stream; charset=utf-8"))
        work = await inside(door)
        door.break_off()
        first, error, done = (await work).text.strip().split("\n\n")
        assert (first, done) == ("data: 1", "data: [DONE]") and '"code":503' in error

        door = Door(App(begins=b"application/json"))
        work = await inside(door)
        door.break_off()
        with pytest.raises((AssertionError, httpx.HTTPError)):  # cut short: no client takes it for whole
            await work

    run(body)


def test_a_task_that_is_cancelled_by_others_stays_cancelled() -> None:
    async def body() -> None:
        door = Door(App())
        work = await inside(door)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert door.empty.is_set()

    run(body)
