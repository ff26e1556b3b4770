"""Signals and deaths under load: what 50 streams see, the exit code, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.serving import Server, alive, stub_server, until
from tests.server.harness import VOCAB, byte_tokenizer
from tests.soak.client import Connection, Outcome, ask_for, stream
from tests.soak.quiet import load_of, wait_idle
from tests.soak.tiny import tiny_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]
STREAMS = 50
Start = Callable[..., Server]


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files of the processes that a test starts."""
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


@pytest.fixture(params=["stub", "tiny"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """Starts a server of one kind: max_model_len 4096, room for 64 sequences."""

    def run(*, drain_timeout_s: float = 30.0, restart_engine: bool = False) -> Server:
        if request.param == "stub":
            stub = {"tokenizer": str(byte_tokenizer(tmp_path)), "vocab_size": VOCAB, "max_num_seqs": 64}
            return stub_server(
                stub={**stub, "step_s": 0.01}, drain_timeout_s=drain_timeout_s, restart_engine=restart_engine
            ).ready()
        flags = ["--max-model-len", "4096", "--max-num-seqs", "64", "--kv-cache-tokens", "262144"]
        flags += ["--drain-timeout-s", str(drain_timeout_s), *(["--restart-engine"] if restart_engine else [])]
        return tiny_server(tmp_path, *flags).ready()

    return run


class Crowd:
    """Streams read by an event loop in a thread."""

    def __init__(self, url: str, num_tokens: int) -> None:
        self.connections = [Connection(url) for _ in range(STREAMS)]
        self._num_tokens = num_tokens
        self._outcomes: list[Outcome] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        until(lambda: all(connection.outcome.events >= 2 for connection in self.connections), 60)

    async def _run(self) -> None:
        self._outcomes = await asyncio.gather(*(self._one(i) for i in range(STREAMS)))

    async def _one(self, number: int) -> Outcome:
        await self.connections[number].ask("/v1/completions", ask_for(self._num_tokens, number))
        return await self.connections[number].read_all()

    def end(self) -> list[Outcome]:
        """What each saw."""
        self._thread.join(60)
        assert not self._thread.is_alive(), "a stream hangs"
        return self._outcomes


def check_cut(outcomes: list[Outcome], word: str) -> None:
    """Each stream ended with one error event, then [DONE], and the HTTP body was complete."""
    for outcome in outcomes:
        assert outcome.status == 200 and outcome.done and outcome.broken is None, outcome
        assert outcome.error is not None and word in outcome.error, outcome.error
        assert outcome.finish_reason is None


def check_nothing_left(server: Server, sockets: Path) -> None:
    """No process, no port, no socket folder."""
    assert not [pid for pid in (server.process.pid, *server.engines) if alive(pid)]
    assert list(sockets.glob("baton-*")) == []
    host, port = server.url.removeprefix("http://").split(":")
    with socket.socket() as probe:
        assert probe.connect_ex((host, int(port))) != 0
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))


def test_sigterm_drains_50_streams_and_refuses_new_ones(start: Start, sockets: Path) -> None:
    with start() as server:
        crowd = Crowd(server.url, 500)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.status("/ready") == 503)
        late = asyncio.run(stream(server.url, ask_for(4, 0)))
        assert late.status == 503 and int(late.headers["retry-after"]) >= 1
        assert Counter(outcome.kind(500) for outcome in crowd.end()) == {"complete": STREAMS}
        assert server.exit() == 0
        check_nothing_left(server, sockets)


def test_a_drain_that_takes_too_long_cuts_50_streams(start: Start, sockets: Path) -> None:
    with start(drain_timeout_s=0.3) as server:
        crowd = Crowd(server.url, 4000)
        server.process.send_signal(signal.SIGTERM)
        check_cut(crowd.end(), "shut down")
        assert server.exit() == 0
        check_nothing_left(server, sockets)


def test_clients_that_never_read_do_not_hold_a_drain(start: Start, sockets: Path) -> None:
    async def ask() -> list[Connection]:
        silent = [Connection(server.url, receive_bytes=4096) for _ in range(5)]
        for number, connection in enumerate(silent):
            await connection.ask("/v1/completions", ask_for(1500, number))
        return silent

    with start() as server:
        silent = asyncio.run(ask())
        until(lambda: load_of(server).running == 5)
        server.process.send_signal(signal.SIGTERM)
        assert server.exit(60) == 0  # 1500 steps, then 5 s for readers
        check_nothing_left(server, sockets)
        for connection in silent:
            connection.close()


def test_a_killed_engine_ends_50_streams_and_the_service(start: Start, sockets: Path) -> None:
    with start() as server:
        crowd = Crowd(server.url, 4000)
        os.kill(server.engine(), signal.SIGKILL)
        check_cut(crowd.end(), "SIGKILL")
        assert server.exit() == 1
        check_nothing_left(server, sockets)


def test_with_restart_engine_a_killed_one_is_replaced(start: Start, sockets: Path) -> None:
    with start(restart_engine=True) as server:
        for _ in range(2):
            crowd = Crowd(server.url, 4000)
            os.kill(server.engine(), signal.SIGKILL)
            check_cut(crowd.end(), "SIGKILL")
            until(lambda: server.status("/ready") == 200, 60)
            server.engine()
            wait_idle(server)
        again: Any = Crowd(server.url, 100).end()
        assert Counter(outcome.kind(100) for outcome in again) == {"complete": STREAMS}
        server.process.send_signal(signal.SIGTERM)
        assert server.exit() == 0
        check_nothing_left(server, sockets)


def test_a_killed_server_leaves_nothing(start: Start, sockets: Path) -> None:
    with start() as server:
        crowd = Crowd(server.url, 4000)
        server.process.kill()
        assert server.process.wait(10) == -signal.SIGKILL
        assert all(outcome.broken for outcome in crowd.end())
        until(lambda: not alive(server.engines[0]))
        check_nothing_left(server, sockets)
