"""The service as a process: real signals, real deaths, exit codes, ports. The stand-in engine takes a model's place."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from baton.cluster.launch import EngineLaunch
from baton.cluster.service import FAILED, ServiceConfig, run_service
from baton.server.engine_client import EngineClient
from tests.cluster.serving import Server, alive, children, stub_server, until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]
SLOW = {"step_s": 0.02}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Streaming:
    """A streamed completion read by a thread."""

    def __init__(self, server: Server, **fields: Any) -> None:
        self.events: list[Any] = []
        self._pool = ThreadPoolExecutor(1)
        self._done: Future[None] = self._pool.submit(self._read, server, fields)
        until(lambda: len(self.events) >= 2 or self._done.done())

    def _read(self, server: Server, fields: dict[str, Any]) -> None:
        for event in server.stream(**fields):
            self.events.append(event)

    def end(self) -> list[Any]:
        """All events, once the stream has ended."""
        self._done.result(15)
        self._pool.shutdown()
        return self.events


def finish_reasons(events: list[Any]) -> list[str]:
    return [c["finish_reason"] for e in events if e != "[DONE]" for c in e.get("choices", ()) if c["finish_reason"]]


def errors(events: list[Any]) -> list[dict[str, Any]]:
    return [e["error"] for e in events if e != "[DONE]" and "error" in e]


def test_it_serves_then_ends_by_sigterm_and_leaves_its_port() -> None:
    port = free_port()
    for _ in range(2):  # the second finds the port free
        with stub_server(port=port, stub={}) as server:
            server.ready()
            assert server.url == f"http://127.0.0.1:{port}"
            assert server.complete().json()["usage"]["completion_tokens"] == 4
            assert [server.status(path) for path in ("/health", "/ready")] == [200, 200]
            server.process.send_signal(signal.SIGTERM)
            assert server.exit(5) == 0
            assert not accepts(port)


def test_a_killed_engine_gives_errors_then_503_then_a_nonzero_exit() -> None:
    with stub_server(stub=SLOW) as server:
        server.ready()
        stream = Streaming(server, max_tokens=3000)
        os.kill(server.engine(), signal.SIGKILL)
        events = stream.end()
        (error,) = errors(events)
        assert error["code"] == 503 and "SIGKILL" in error["message"]
        assert events[-1] == "[DONE]" and finish_reasons(events) == []
        assert [server.status(path) for path in ("/health", "/ready", "/live")] == [503, 503, 200]
        refused = server.complete()
        assert refused.status_code == 503 and refused.json()["error"]["code"] == 503
        assert server.exit() == 1
        assert "killed by signal SIGKILL" in server.stderr()


def test_an_error_inside_the_engine_does_the_same() -> None:
    with stub_server(stub={"poison": 9}) as server:
        server.ready()
        answer = server.complete(prompt=[9, 1])
        assert answer.status_code == 503 and "poisoned prompt" in answer.json()["error"]["message"]
        assert "Traceback" not in answer.text
        assert server.exit() == 1
        assert "Traceback" in server.stderr()  # the engine's own log


def test_with_restart_engine_the_service_comes_back() -> None:
    with stub_server(stub=SLOW, restart_engine=True) as server:
        server.ready()
        first = server.engine()
        stream = Streaming(server, max_tokens=3000)
        os.kill(first, signal.SIGKILL)
        assert len(errors(stream.end())) == 1
        until(lambda: server.status("/ready") == 200)
        assert server.engine() != first
        assert server.complete().json()["usage"]["completion_tokens"] == 4
        server.process.send_signal(signal.SIGTERM)
        assert server.exit() == 0


def test_restarts_are_bounded() -> None:
    with stub_server(stub={"poison": 9}, restart_engine=True) as server:
        server.ready()
        for _ in range(4):  # the first engine and three more
            until(lambda: server.status("/ready") == 200)
            server.engine()
            assert server.complete(prompt=[9]).status_code == 503
        assert server.exit() == 1
        assert "too often" in server.stderr()


def test_sigterm_lets_running_requests_end_and_refuses_new_ones() -> None:
    with stub_server(stub=SLOW) as server:
        server.ready()
        stream = Streaming(server, max_tokens=60, return_token_ids=True)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.status("/ready") == 503)
        assert server.status("/health") == 200
        refused = server.complete()
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        events = stream.end()
        assert finish_reasons(events) == ["length"] and errors(events) == []
        assert sum(len(choice["token_ids"]) for event in events[:-1] for choice in event["choices"]) == 60
        assert server.exit() == 0


def test_a_drain_is_bounded() -> None:
    with stub_server(stub=SLOW, drain_timeout_s=0.5) as server:
        server.ready()
        stream = Streaming(server, max_tokens=3000)
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        events = stream.end()
        assert len(errors(events)) == 1 and events[-1] == "[DONE]"
        assert server.exit() == 0
        assert 0.4 < time.monotonic() - start < 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_aborts_at_once(number: signal.Signals) -> None:
    with stub_server(stub=SLOW) as server:
        server.ready()
        stream = Streaming(server, max_tokens=3000)
        server.process.send_signal(number)
        until(lambda: server.status("/ready") == 503)
        assert errors(stream.events) == []
        start = time.monotonic()
        server.process.send_signal(number)
        assert len(errors(stream.end())) == 1
        assert server.exit() == 1
        assert time.monotonic() - start < 3


def test_a_client_that_never_reads_does_not_hold_the_end() -> None:
    with stub_server(stub={}, drain_timeout_s=1.0) as server:
        server.ready()
        host, port = server.url.removeprefix("http://").split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            body = b'{"prompt": [1], "max_tokens": 4000, "n": 8, "stream": true, "ignore_eos": true}'
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            time.sleep(0.5)
            server.process.send_signal(signal.SIGTERM)
            assert server.exit(10) == 0


def test_a_signal_while_the_engine_loads_ends_everything() -> None:
    with stub_server(stub={"start_s": 60.0}) as server:
        until(lambda: children(server.process.pid))
        server.engine()
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.exit() == 0
        assert time.monotonic() - start < 3


def test_an_engine_that_cannot_start_is_one_line_and_code_2() -> None:
    with stub_server(stub={"refuse_start": "no such model"}) as server:
        assert server.exit() == 2
        assert server.stderr().splitlines()[-1] == "baton: no such model"
        assert "Traceback" not in server.stderr()


def test_a_port_in_use_is_one_line_and_code_2_and_no_engine() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with stub_server(port=port, stub={}) as server:
            assert server.exit() == 2
            (line,) = server.stderr().splitlines()
            assert str(port) in line and "--port" in line
            assert server.engines == []


def test_a_port_taken_while_the_engine_loads() -> None:
    """Both may bind before either listens; the loser ends cleanly. Its engine is held up until the other serves."""
    port = free_port()
    with stub_server(port=port, stub={"start_s": 1.0}) as slow:
        until(lambda: children(slow.process.pid))
        os.kill(slow.engine(), signal.SIGSTOP)
        with stub_server(port=port, stub={}) as quick:
            quick.ready()
            os.kill(slow.engine(), signal.SIGCONT)
            assert slow.exit() == 2
            assert str(port) in slow.stderr().splitlines()[-1]
            assert quick.status("/health") == 200


def test_a_stopped_engine_is_seen_while_its_server_answers() -> None:
    """The engine answers twice a second, so two seconds of silence are at least 1.4 s of it being stopped."""

    def silent_s() -> float:
        seconds: float = httpx.get(server.url + "/stats", timeout=5).json()["engine_silent_s"]
        return seconds

    with stub_server(stub={}) as server:
        server.ready()
        until(lambda: silent_s() < 0.2)
        os.kill(server.engine(), signal.SIGSTOP)
        stopped = time.monotonic()
        until(lambda: silent_s() > 1.0, 5)
        assert 0.3 < time.monotonic() - stopped < 1.5
        assert silent_s() > 1.0 and server.status("/live") == 200
        os.kill(server.engine(), signal.SIGCONT)
        until(lambda: silent_s() < 0.2, 5)
        assert server.complete().status_code == 200


def test_a_killed_server_takes_its_engine_along() -> None:
    with stub_server(stub=SLOW) as server:
        engine = server.ready().engine()
        stopped = threading.Thread(target=lambda: list(server_stream(server)), daemon=True)
        stopped.start()
        time.sleep(0.2)
        server.process.kill()
        until(lambda: not alive(engine), 2.0)


def test_http_that_ends_by_itself_ends_the_service() -> None:
    """Its task is cancelled as nothing in the service would; the engine lives, and nobody sends a signal."""

    @asynccontextmanager
    async def front(client: EngineClient) -> AsyncIterator[Any]:
        killer = asyncio.create_task(kill_http())
        yield lambda scope, receive, send: None
        killer.cancel()

    async def kill_http() -> None:
        while not (found := [t for t in asyncio.all_tasks() if "Server.serve" in str(t.get_coro())]):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        found[0].cancel()

    config = ServiceConfig(host="127.0.0.1", port=0, max_restarts=3, drain_timeout_s=60.0)
    start = time.monotonic()
    others = set(children(os.getpid()))  # engines of other tests' servers
    try:
        code = run_service(config, EngineLaunch(module="baton.engine.stub_process", options="{}"), front)
    finally:
        gc.unfreeze()
    assert code == FAILED and set(children(os.getpid())) <= others
    assert time.monotonic() - start < 20


def server_stream(server: Server) -> list[Any]:
    try:
        return list(server.stream(max_tokens=3000))
    except Exception:  # the connection breaks: that is the point
        return []
