"""The event stream of the page: made once a second for all, only while somebody looks, for a bounded number."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from baton.router.events import FleetEvents
from baton.web.errors import ApiError, on_error
from tests.router.showing import Shown, request
from tests.web.serving import served


class Counted:
    """Events whose snapshots are numbers, or as many bytes as wanted."""

    def __init__(self, *, every_s: float = 0.1, life_s: float = 60.0, size: int = 0) -> None:
        self.made = 0
        self._size = size
        self.events = FleetEvents(self._make, every_s=every_s, life_s=life_s)
        routes = [Route("/events", self.events.respond), Route("/close", self._close, methods=["POST"])]
        self.app = Starlette(routes=routes, exception_handlers={ApiError: on_error})

    async def _close(self, _: HttpRequest) -> Response:
        self.events.close()
        return Response()

    def _make(self) -> bytes:
        self.made += 1
        return json.dumps({"n": self.made, "fill": "x" * self._size}).encode()


def read(lines: Iterator[str], least: int) -> list[int]:
    """The numbers of snapshots until one is at least that."""
    numbers: list[int] = []
    for line in lines:
        if line.startswith("data: {"):
            numbers.append(json.loads(line[6:])["n"])
            if numbers[-1] >= least:
                return numbers
    raise AssertionError(f"the stream ended after {numbers}")


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_nothing_is_made_while_nobody_looks_and_one_snapshot_serves_all() -> None:
    counted = Counted()
    with served(counted.app) as url:
        time.sleep(0.3)
        assert httpx.head(f"{url}events").status_code == 200
        assert counted.made == 0
        with httpx.stream("GET", f"{url}events") as one, httpx.stream("GET", f"{url}events") as two:
            assert one.headers["content-type"].startswith("text/event-stream")
            start, lines = time.monotonic(), two.iter_lines()
            first = read(lines, 1)[0]
            theirs = [first, *read(lines, first + 5)]
            ours = read(one.iter_lines(), theirs[-1])
            took_s = time.monotonic() - start
            assert counted.made - first <= took_s / 0.09 + 2  # not twice as many for two who look
        assert ours == sorted(set(ours)) and len(set(ours) & set(theirs)) >= 3
        wait_until(lambda: counted.events.num_viewers == 0)
        made = counted.made
        time.sleep(0.4)
        assert counted.made == made


def test_the_number_of_viewers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.router.events._MAX_VIEWERS", 2)
    counted = Counted()
    with served(counted.app) as url:
        with httpx.stream("GET", f"{url}events") as one, httpx.stream("GET", f"{url}events") as two:
            assert one.status_code == two.status_code == 200
            refused = httpx.get(f"{url}events")
            assert refused.status_code == 503 and "close one" in refused.json()["error"]["message"]
        wait_until(lambda: counted.events.num_viewers == 0)
        with httpx.stream("GET", f"{url}events") as third:
            assert third.status_code == 200


def test_who_reads_nothing_is_given_up() -> None:
    counted = Counted(every_s=0.05, size=1 << 20)
    with (
        served(counted.app) as url,
        socket.create_connection(("127.0.0.1", int(url.rsplit(":")[-1].strip("/")))) as idle,
    ):
        idle.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: counted.events.num_viewers == 1)
        wait_until(lambda: counted.events.num_viewers == 0, 20)
        assert counted.made < 60  # it was not written into memory without end


def test_a_stream_ends_after_its_life_and_at_close() -> None:
    counted = Counted(every_s=0.05, life_s=0.3)
    with served(counted.app) as url:
        assert httpx.get(f"{url}events", timeout=5).text.endswith("data: [DONE]\n\n")
    lasting = Counted(every_s=30.0)
    with served(lasting.app) as url, httpx.stream("GET", f"{url}events", timeout=5) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: {")
        start = time.monotonic()
        httpx.post(f"{url}close")
        assert list(lines)[-2:] == ["data: [DONE]", ""] and time.monotonic() - start < 5
        assert httpx.get(f"{url}events").status_code == 503


def test_the_page_s_events_are_the_fleet() -> None:
    shown = Shown()
    shown.add(request(time.time(), "mine"))
    with served(shown.app(("secret",))) as url:
        assert httpx.get(f"{url}fleet/events").status_code == 401
        headers = {"Authorization": "Bearer secret"}
        with httpx.stream("GET", f"{url}fleet/events", headers=headers) as answer:
            body = json.loads(next(answer.iter_lines())[6:])
        again = httpx.get(f"{url}fleet", headers=headers).json()
    assert [each["request_id"] for each in body["requests"]] == ["mine"]
    assert body.keys() == again.keys()
