"""A real server registers at something that listens as a router does, keeps at it, and takes it back when it drains."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from baton.cluster.registration import Registration, reachable_host, with_host
from baton.core.errors import ConfigError
from tests.cluster.serving import Server, stub_server, until

Call = tuple[str, str, str | None, dict[str, object]]


@contextmanager
def router(port: int = 0, status: int = 200) -> Iterator[tuple[str, list[Call]]]:
    """Its URL, and what it was asked: method, path, key, body."""
    calls: list[Call] = []

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            calls.append((self.command, self.path, self.headers["authorization"], json.loads(body or b"{}")))
            self.send_response(status)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_POST = do_DELETE = _answer

        def log_message(self, *arguments: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", calls
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_a_server_registers_until_it_drains() -> None:
    with router() as (url, calls), stub_server(stub={"step_s": 0.02}, router=url + "/", api_keys=["own"]) as server:
        server.ready()
        until(lambda: calls)
        assert calls[0] == ("POST", "/workers", "Bearer sesame", {"url": server.url, "lease": True, "api_key": "own"})
        until(lambda: len(calls) == 2, 8)
        assert calls[1] == calls[0]
        server.process.send_signal(signal.SIGTERM)
        assert server.exit() == 0
        method, path, key, _ = calls[-1]
        assert (method, unquote(path), key) == ("DELETE", f"/workers/{server.url}", "Bearer sesame")


@pytest.mark.slow
def test_a_router_that_is_away_is_named_once_and_does_not_hold_up_anything() -> None:
    with router() as (gone, _):
        pass
    with stub_server(stub={}, router=gone) as server:
        server.ready()
        assert server.complete().status_code == 200
        with router(int(gone.rpartition(":")[2])) as (_, calls):
            until(lambda: calls, 8)
            until(lambda: "registered at" in server.stderr())
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.exit() == 0
        assert time.monotonic() - start < 5
        assert server.stderr().count("cannot register") == 1


class Router(Server):
    """`baton route` without workers; it has no engine."""

    def __init__(self) -> None:
        super().__init__(
            [sys.executable, "-m", "baton", "route", "--host", "127.0.0.1", "--port", "0", "--admin-key", "sesame"]
        )

    def engine(self) -> int:
        return 0

    def workers(self) -> list[dict[str, Any]]:
        answer = httpx.get(self.url + "/workers", headers={"authorization": "Bearer sesame"}, timeout=5)
        found: list[dict[str, Any]] = answer.json()["workers"]
        return found


@pytest.mark.slow
def test_a_real_router_serves_from_it_until_it_drains() -> None:
    with Router() as router:
        router.ready()
        with stub_server(stub={}, router=router.url, api_keys=["own"]) as server:
            server.ready()
            until(lambda: [worker["state"] for worker in router.workers()] == ["ready"])
            assert router.workers()[0]["url"] == server.url
            assert router.complete().json()["usage"]["completion_tokens"] == 4  # the router knows the worker's key
            server.process.send_signal(signal.SIGTERM)
            assert server.exit() == 0
        until(lambda: not router.workers())
        assert router.complete().status_code == 503


def test_the_host_is_the_one_it_listens_on_or_the_one_the_router_sees() -> None:
    assert reachable_host("http://10.1.2.3:8000", "http://10.0.0.1:8080") == "10.1.2.3"
    for everywhere in ("http://0.0.0.0:8000", "http://[::]:8000"):
        assert reachable_host(everywhere, "http://127.0.0.1:8080") == "127.0.0.1"
    assert with_host("http://0.0.0.0:8000", "10.1.2.3") == "http://10.1.2.3:8000"
    assert with_host("http://0.0.0.0:8000", "fe80::1") == "http://[fe80::1]:8000"


@pytest.mark.parametrize("bad", ["10.0.0.1:8080", "ftp://router", "http://", ""])
def test_what_is_no_url_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match="--router"):
        Registration(router=bad)
