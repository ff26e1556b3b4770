"""`baton route` as a process: it gets ready, serves, drains, and says what is wrong with its arguments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import IO, Any

import httpx
import pytest

from tests.cluster.serving import stub_server

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("BATON_")}


@contextmanager
def route(
    *arguments: str, stderr: IO[str] | None = None, **environment: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """(URL, process) of a router on a free port."""
    command = [sys.executable, "-m", "baton", "route", "--host", "127.0.0.1", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=PLAIN | environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Baton is ready at http://"), line
        yield line.split()[-1], process
    finally:
        process.kill()
        process.wait()


def refused(*arguments: str) -> str:
    command = [sys.executable, "-m", "baton", "route", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=PLAIN, check=False)
    assert done.returncode == 2, done.stderr
    return done.stderr


def complete(url: str, **changes: Any) -> httpx.Response:
    body = {"model": "stub", "prompt": [1, 2, 3], "max_tokens": 4} | changes
    return httpx.post(url + "/v1/completions", json=body, timeout=20)


def test_it_routes_drains_and_ends() -> None:
    with stub_server(stub={"step_s": 0.05}) as server:
        server.ready()
        with route("--worker", server.url) as (url, process):
            (worker,) = httpx.get(url + "/workers").json()["workers"]
            assert (worker["id"], worker["state"], worker["role"]) == (server.url, "ready", "mixed")
            assert httpx.get(url + "/ready").status_code == 200
            model = httpx.get(url + "/v1/models").json()["data"][0]["id"]
            assert complete(url, model=model).json()["usage"]["completion_tokens"] == 4
            answers: list[httpx.Response] = []
            slow = Thread(target=lambda: answers.append(complete(url, model=model, max_tokens=40)))
            slow.start()
            running(url)
            process.send_signal(signal.SIGTERM)
            status_soon(url + "/ready", 503)
            late = complete(url, model=model)
            assert late.status_code == 503 and "shutting down" in late.json()["error"]["message"]
            slow.join(20)
            assert answers[0].json()["usage"]["completion_tokens"] == 40  # drained, not broken off
            assert process.wait(10) == 0
            assert httpx.post(f"{server.url}/v1/completions", json={"model": model, "prompt": [1], "max_tokens": 1})


def test_a_second_signal_breaks_off_and_every_client_is_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with stub_server(stub={"step_s": 0.05}) as server, log.open("w") as stderr:
        server.ready()
        with route("--worker", server.url, stderr=stderr) as (url, process):
            model = httpx.get(url + "/v1/models").json()["data"][0]["id"]
            answers: list[httpx.Response] = []
            asks = [
                Thread(target=lambda stream=stream: answers.append(endless(url, model, stream)))  # type: ignore[misc]
                for stream in (False, True)
            ]
            for ask in asks:
                ask.start()
            running(url, num_requests=2)
            time.sleep(0.3)  # the stream has begun
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 1
            for ask in asks:
                ask.join(10)
            whole, stream = sorted(answers, key=lambda answer: -answer.status_code)
            assert (whole.status_code, stream.status_code) == (503, 200)
            assert "shut down before" in whole.json()["error"]["message"] and whole.headers["Retry-After"]
            *_, error, done = stream.text.strip().split("\n\n")
            assert json.loads(error.removeprefix("data: "))["error"]["code"] == 503 and done == "data: [DONE]"
    assert "Traceback" not in log.read_text() and "never retrieved" not in log.read_text()


def endless(url: str, model: str, stream: bool) -> httpx.Response:
    return complete(url, model=model, max_tokens=3000, ignore_eos=True, stream=stream)


def running(url: str, num_requests: int = 1) -> None:
    deadline = time.monotonic() + 10
    while True:
        (row,) = httpx.get(url + "/workers").json()["workers"]
        if row["outstanding"]["requests"] >= num_requests:
            return
        assert time.monotonic() < deadline, row
        time.sleep(0.02)


def status_soon(url: str, status: int) -> None:
    deadline = time.monotonic() + 5
    while httpx.get(url).status_code != status:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_without_workers_it_waits_for_some_to_register() -> None:
    with route() as (url, _):
        answer = complete(url)
        assert answer.status_code == 503 and answer.headers["Retry-After"]
        assert httpx.get(url + "/ready").status_code == 503
        assert httpx.post(url + "/workers", json={"url": "http://127.0.0.1:9"}).status_code == 200
        assert len(httpx.get(url + "/workers").json()["workers"]) == 1


def test_keys_of_clients_and_of_admins() -> None:
    with route("--api-key", "client", BATON_ROUTER_KEY="admin") as (url, _):
        client, admin = ({"authorization": f"Bearer {key}"} for key in ("client", "admin"))
        assert complete(url).status_code == 401
        assert httpx.get(url + "/v1/models", headers=client).status_code == 503
        assert httpx.get(url + "/workers").status_code == 401
        assert httpx.get(url + "/workers", headers=client).status_code == 401
        assert httpx.get(url + "/workers", headers=admin).status_code == 200


def test_a_workers_file(tmp_path: Path) -> None:
    file = tmp_path / "workers.json"
    peer = {"engine_id": "e", "host": "h", "port": 1}
    file.write_text(
        json.dumps([{"url": "http://127.0.0.1:9", "role": "prefill", "transfer_mode": "push", "peer": peer}])
    )
    with route("--workers-file", str(file), "--decode", "http://127.0.0.1:10") as (url, _):
        rows = {row["id"]: row["role"] for row in httpx.get(url + "/workers").json()["workers"]}
        assert rows == {"http://127.0.0.1:9": "prefill", "http://127.0.0.1:10": "decode"}


def test_arguments_that_cannot_be() -> None:
    with route() as (url, _):
        taken = url.rpartition(":")[2]
        assert f"127.0.0.1:{taken}" in refused("--host", "127.0.0.1", "--port", taken)
    assert "write http://HOST:PORT" in refused("--prefill", "localhost")
