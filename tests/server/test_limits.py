"""What keeps a server up: keys, sizes, queue, deadline, disconnects, drain, a dead engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from baton.server.config import ServerConfig
from baton.web.errors import ApiError
from baton.web.guard import clean_id
from baton.web.limits import BodyReader
from tests.server.harness import Server, events_of, run_server
from tests.server.test_http_cases import check_error

pytestmark = pytest.mark.slow

COMPLETIONS = "/v1/completions"
OPEN = ["/health", "/live", "/ready", "/ping", "/version", "/load", "/metrics", "/"]


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def idle(server: Server) -> bool:
    """Nothing lives in client, engine or metrics."""
    stats = server.client.stats
    return not (server.client.num_live or stats.num_running or stats.num_waiting or server.metrics.num_live)


def raw_request(server: Server, path: str, body: dict[str, Any]) -> socket.socket:
    """A connection over which a request was sent and nothing is read."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


@pytest.fixture
def slow(tokenizer_folder: Path) -> Any:
    """Runs a server whose steps take 20 ms, with any options."""

    def run(config: ServerConfig | None = None, **stub: Any) -> Any:
        return run_server(tokenizer_folder, config, **{"step_s": 0.02, **stub})

    return run


def test_keys(tokenizer_folder: Path) -> None:
    with run_server(tokenizer_folder, ServerConfig(api_keys=("one", "two"))) as server, server.http() as http:
        for path in OPEN:
            assert http.get(path).status_code == 200, path
        for header in ({}, {"authorization": "Bearer three"}, {"authorization": "one"}, {"authorization": "Bearer"}):
            response = http.get("/v1/models", headers=header)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            check_error(response, None)
            assert http.post(COMPLETIONS, json={"prompt": "x"}, headers=header).status_code == 401
            assert http.post("/tokenize", json={"prompt": "x"}, headers=header).status_code == 401
        for key in ("one", "two"):
            assert http.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200


def test_key_of_any_characters(tokenizer_folder: Path) -> None:
    """Clients send a key's UTF-8 bytes."""
    with run_server(tokenizer_folder, ServerConfig(api_keys=("clé",))) as server, server.http() as http:
        for key, status in (("clé".encode(), 200), ("clé".encode("latin-1"), 401)):
            assert http.get("/v1/models", headers={b"authorization": b"Bearer " + key}).status_code == status


def test_body_size(tokenizer_folder: Path) -> None:
    with run_server(tokenizer_folder, ServerConfig(max_body_bytes=1000)) as server, server.http() as http:
        declared = http.post(COMPLETIONS, json={"prompt": "x" * 1000})
        check_error(declared, "body")
        chunked = http.post(COMPLETIONS, content=iter([b"x" * 600] * 3))
        check_error(chunked, "body")
        assert declared.status_code == chunked.status_code == 413
        assert http.post(COMPLETIONS, json={"prompt": "x"}).status_code == 200


def test_oversized_body_is_refused_before_it_is_sent(tokenizer_folder: Path) -> None:
    """The answer comes although not one byte of the declared gigabyte was sent."""
    with run_server(tokenizer_folder) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def half_a_body(server: Server, num_bytes: int = 0) -> socket.socket:
    """A connection over which a body of 30 MB was announced, and some of it sent."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=5)
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 30000000\r\n\r\n" + b" " * num_bytes
    )
    return connection


def test_a_full_queue_and_a_drain_refuse_before_the_body_is_sent(slow: Any) -> None:
    with slow(ServerConfig(max_queue=1), max_num_seqs=1) as server:
        running = [raw_request(server, COMPLETIONS, {"prompt": "x", "max_tokens": 500}) for _ in range(2)]
        eventually(lambda: server.client.num_live == 2)
        with half_a_body(server) as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 429 ")
        server.call(server.client.drain, "the server is shutting down")
        with half_a_body(server) as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 503 ")
        for each in running:
            each.close()


def arriving(queue: asyncio.Queue[bytes | None]) -> Request:
    """A request whose body comes part by part; None ends it."""

    async def receive() -> dict[str, Any]:
        part = await queue.get()
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    return Request({"type": "http", "headers": []}, receive)


def test_bytes_of_all_bodies_are_bounded() -> None:
    """100 bytes may be read at once: of two bodies of 50 and one of 1 the last is refused; none counts once read."""

    async def run() -> None:
        reader = BodyReader(60, max_all_bytes=100)
        queues: list[asyncio.Queue[bytes | None]] = [asyncio.Queue() for _ in range(2)]
        reads = [asyncio.create_task(reader.read(arriving(queue))) for queue in queues]
        for queue in queues:
            queue.put_nowait(b"a" * 50)
        while reader.num_bytes < 100:
            await asyncio.sleep(0)
        small: asyncio.Queue[bytes | None] = asyncio.Queue()
        small.put_nowait(b"b")
        with pytest.raises(ApiError) as refused:
            await reader.read(arriving(small))
        assert refused.value.status == 503 and refused.value.headers["Retry-After"] == "1"
        queues[0].put_nowait(None)
        assert await reads[0] == b"a" * 50 and reader.num_bytes == 50
        queues[1].put_nowait(b"a" * 11)
        with pytest.raises(ApiError, match="longer than 60 bytes"):
            await reads[1]
        assert reader.num_bytes == 0

    asyncio.run(asyncio.wait_for(run(), 10))


def test_a_body_that_may_be_longer_than_all_together_can_be_read() -> None:
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()
    for part in (b"a" * 200, None):
        queue.put_nowait(part)
    assert asyncio.run(BodyReader(200, max_all_bytes=100).read(arriving(queue))) == b"a" * 200


def test_a_body_that_does_not_come_is_408_and_the_end_of_the_connection(
    tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.server.state.BodyReader", partial(BodyReader, read_s=0.3))
    with run_server(tokenizer_folder) as server, half_a_body(server, 1000) as connection:
        raw = b""
        while part := connection.recv(1000):
            raw += part
        head, _, body = raw.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        error = json.loads(body)["error"]
        assert (error["code"], error["type"], error["param"]) == (408, "TimeoutError", "body")


def test_queue(slow: Any) -> None:
    with slow(ServerConfig(max_queue=2), max_num_seqs=1) as server:
        body = {"prompt": "x", "max_tokens": 500, "stream": True}
        connections = [raw_request(server, COMPLETIONS, body) for _ in range(3)]
        eventually(lambda: server.client.num_live == 3)
        response = server.post(COMPLETIONS, prompt="x")
        check_error(response, None)
        assert response.status_code == 429 and int(response.headers["retry-after"]) >= 1
        assert server.metrics.figures.rejections["max_num_queued_reqs"] == 1
        for connection in connections:
            connection.close()
        eventually(lambda: idle(server))
        assert server.post(COMPLETIONS, prompt="x", max_tokens=1).status_code == 200


def test_queue_is_counted_before_the_engine_says_so(slow: Any) -> None:
    """The first step takes 2 s: until then the engine has reported nothing."""
    with slow(ServerConfig(max_queue=1), max_num_seqs=1, step_s=2.0) as server:
        connections = [raw_request(server, COMPLETIONS, {"prompt": "x", "max_tokens": 1}) for _ in range(2)]
        eventually(lambda: server.client.num_live == 2)
        assert server.client.stats.num_waiting == 0
        assert server.post(COMPLETIONS, prompt="x").status_code == 429
        for connection in connections:
            connection.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("body", [{"prompt": "x"}, {"prompt": ["x", "y", "z"], "n": 2}], ids=["one", "many"])
def test_disconnect_ends_it_in_the_engine(slow: Any, body: dict[str, Any], stream: bool) -> None:
    with slow() as server:
        connection = raw_request(server, COMPLETIONS, {**body, "max_tokens": 2000, "stream": stream})
        eventually(lambda: server.client.stats.num_running > 0)
        connection.close()
        closed_s = time.monotonic()
        eventually(lambda: server.client.num_live == 0, 1.0)
        eventually(lambda: idle(server), 1.0)
        assert time.monotonic() - closed_s < 0.5
        assert server.http().get("/load").json() == {"server_load": 0}


def test_deadline_before_the_answer(slow: Any) -> None:
    with slow(ServerConfig(request_timeout_s=0.3)) as server:
        response = server.post(COMPLETIONS, prompt="x", max_tokens=2000)
        check_error(response, None)
        assert response.status_code == 504
        eventually(lambda: idle(server))


def test_deadline_inside_a_stream_is_an_event_and_done(slow: Any) -> None:
    with slow(ServerConfig(request_timeout_s=0.3)) as server:
        events = server.stream(COMPLETIONS, prompt=["x", "y"], max_tokens=2000)
        assert [set(event) for event in events][-1] == {"error"}
        assert events[-1]["error"]["code"] == 504
        assert events[0]["choices"][0]["text"] is not None
        eventually(lambda: idle(server))


def test_slow_reader_gets_everything_in_few_pieces(tokenizer_folder: Path) -> None:
    """24,000 tokens for a client that reads only after the end: the engine is not held up, and nothing is lost."""
    with run_server(tokenizer_folder) as server:
        body = {"prompt": "x", "n": 16, "max_tokens": 1500, "seed": 1, "stream": True}
        body["stream_options"] = {"include_usage": True}
        connection = raw_request(server, COMPLETIONS, body)
        connection.settimeout(30)
        eventually(lambda: server.client.num_live == 1)
        eventually(lambda: idle(server), 60)
        raw = b""
        while not raw.endswith(b"0\r\n\r\n"):
            raw += connection.recv(1 << 20)
        connection.close()
        assert b'"completion_tokens":24000' in raw
        assert raw.count(b"data: ") < 20000


def test_drain_refuses_new_requests_and_ends_running_ones(slow: Any) -> None:
    with (
        slow() as server,
        server.http() as http,
        http.stream("POST", COMPLETIONS, json={"prompt": "x", "max_tokens": 30, "stream": True}) as response,
    ):
        server.call(server.client.drain, "the server is shutting down")
        refused = server.post(COMPLETIONS, prompt="x")
        check_error(refused, None)
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert httpx.get(server.url + "/ready").status_code == 503
        assert httpx.get(server.url + "/health").status_code == 200
        events = events_of(b"".join(response.iter_raw()))
        assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_dead_engine(slow: Any) -> None:
    """An error event in the stream that runs, 503 for whatever comes, nothing that looks like a traceback."""
    with slow() as server:
        with (
            server.http() as http,
            http.stream("POST", COMPLETIONS, json={"prompt": "x", "max_tokens": 2000, "stream": True}) as response,
        ):
            assert response.status_code == 200
            os.kill(server.engine.pid or 0, signal.SIGKILL)
            events = events_of(b"".join(response.iter_raw()))
            assert events[-1]["error"]["code"] == 503 and events[-1]["error"]["type"] == "ServiceUnavailableError"
        for request in (lambda: server.post(COMPLETIONS, prompt="x"), lambda: httpx.get(server.url + "/health")):
            answer = request()
            assert answer.status_code == 503
            check_error(answer, None)
            assert "Traceback" not in answer.text
        assert httpx.get(server.url + "/live").status_code == 200
        assert httpx.get(server.url + "/v1/models").status_code == 200


def test_dead_engine_while_a_whole_answer_is_awaited(slow: Any) -> None:
    with slow() as server:
        connection = raw_request(server, COMPLETIONS, {"prompt": ["x", "y"], "max_tokens": 2000})
        connection.settimeout(10)
        eventually(lambda: server.client.stats.num_running == 2)
        os.kill(server.engine.pid or 0, signal.SIGKILL)
        assert connection.recv(1000).startswith(b"HTTP/1.1 503 ")
        connection.close()


@pytest.mark.parametrize("odd", ["", "a b", "a\tb", "a\x7fb", "a\r\nset-cookie: x", "ä", "c" * 129])
def test_ids_that_may_not_stand_in_headers_and_logs(odd: str) -> None:
    assert clean_id(odd) is None and clean_id("c" * 128) == "c" * 128


def test_request_id_comes_back_and_may_repeat(server: Server) -> None:
    with server.http(headers={"x-request-id": "bench-1"}) as http:
        for _ in range(2):
            response = http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1})
            assert response.headers["x-request-id"] == "bench-1"
            assert response.json()["id"] == "cmpl-bench-1"
        assert http.get("/nowhere").headers["x-request-id"] == "bench-1"
    unnamed = server.post(COMPLETIONS, prompt="x", max_tokens=1)
    assert unnamed.json()["id"] == f"cmpl-{unnamed.headers['x-request-id']}"
    odd = httpx.get(server.url + "/health", headers={"x-request-id": "a b" + "c" * 500})
    assert len(odd.headers["x-request-id"]) == 32


def test_an_endpoint_that_breaks_answers_500_without_its_cause(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(server.client, "submit", broken)
    response = server.post(COMPLETIONS, prompt="x")
    assert response.status_code == 500 and "secret" not in response.text
    check_error(response, None)
