"""Real `baton serve` processes with roles: a prefill server, decode servers, and the proxy of the tests in front."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from baton.core.handoff import TransferMode
from tests.cluster.serving import Server, alive, until
from tests.transfer.proxy import Proxy

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
GIVE = {"do_remote_decode": True, "do_remote_prefill": False}
WAIT_S = 60.0


def client(url: str) -> httpx.Client:
    """Connections that are made when they are needed."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
    return httpx.Client(base_url=url, timeout=WAIT_S, verify=False, limits=limits)


class EngineServer(Server):
    """`baton serve` in float32 on the CPU, on a free port of the loopback."""

    def __init__(self, model: Path, *flags: str) -> None:
        fixed = ["--host", "127.0.0.1", "--port", "0", "--device", "cpu", "--max-model-len", "256"]
        dtype = [] if "--dtype" in flags else ["--dtype", "float32"]
        super().__init__([sys.executable, "-m", "baton", "serve", str(model), *fixed, *dtype, *flags])

    @cached_property
    def http(self) -> httpx.Client:
        """Connections to it, for any thread."""
        return client(self.url)

    def post(self, body: dict[str, Any], path: str = COMPLETIONS) -> httpx.Response:
        """One request, whole."""
        return self.http.post(path, json=body)

    def stats(self) -> dict[str, Any]:
        """GET /stats."""
        found: dict[str, Any] = self.http.get("/stats", timeout=5).json()
        return found

    @property
    def peer(self) -> dict[str, Any]:
        """What it says of hand-offs, its control endpoint included."""
        found: dict[str, Any] = self.stats()["handoff"]
        return found

    def metric(self, name: str) -> float:
        """The sum of a metric over all its labels."""
        lines = self.http.get("/metrics", timeout=5).text.splitlines()
        values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + "{", name + " "))]
        assert values, f"no metric {name}"
        return sum(values)

    def idle(self, timeout_s: float = 10.0) -> None:
        """Until nothing runs or waits, and every block is free."""

        def quiet() -> bool:
            stats, peer = self.stats(), self.peer
            held = peer["pinned_blocks"] + peer["num_leased"] + peer["num_waiting"] + peer["num_quarantined"]
            return not (stats["running"] or stats["waiting"] or stats["kv_use"] or held)

        until(quiet, timeout_s)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the engine process."""
        os.kill(self.engine(), number)

    def kill(self) -> None:
        """SIGKILL the engine, and wait for its end. `back` waits for the next one."""
        pid = self.engine()
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid))

    def back(self, engine_id: str) -> None:
        """Until another incarnation than this one takes requests."""
        until(lambda: self.status("/ready") == 200 and self.peer["engine_id"] != engine_id, WAIT_S)
        self.engine()


@dataclass
class Pair:
    """A prefill server, and a decode server behind a proxy (the first of `takers`).

    Attributes:
        http: connections to the proxy.
        transfer_ids: that the proxy has made, in order.
    """

    mode: str
    prefill: EngineServer
    takers: tuple[EngineServer, ...]
    http: httpx.Client
    transfer_ids: list[str]
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(64))

    @property
    def decode(self) -> EngineServer:
        return self.takers[0]

    def ask(self, path: str = COMPLETIONS, **body: Any) -> httpx.Response:
        """A request through the proxy."""
        return self.http.post(path, json=body)

    def run(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        """A call in a thread of its own."""
        return self._threads.submit(call, *args)

    def source(self, transfer_id: str) -> dict[str, Any]:
        """`kv_transfer_params` of the decode leg."""
        peer = self.prefill.peer
        names = {"remote_engine_id": "engine_id", "remote_host": "host", "remote_port": "port", "tp_size": "tp_size"}
        fields = {theirs: peer[ours] for theirs, ours in names.items()}
        return {"do_remote_prefill": True, "do_remote_decode": False, "transfer_id": transfer_id, **fields}

    def give(self, transfer_id: str, **body: Any) -> Future[httpx.Response]:
        """Send the prefill leg alone."""
        params = {**GIVE, "transfer_id": transfer_id}
        return self._threads.submit(self.prefill.post, {**body, "kv_transfer_params": params})

    def take(self, source: dict[str, Any], taker: EngineServer | None = None, **body: Any) -> Future[httpx.Response]:
        """Send the decode leg alone."""
        return self._threads.submit((taker or self.decode).post, {**body, "kv_transfer_params": source})

    def idle(self, timeout_s: float = 10.0) -> None:
        """Until nothing is held on either side."""
        for server in (self.prefill, *self.takers):
            server.idle(timeout_s)


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def servers(*commands: tuple[Path, tuple[str, ...]]) -> Iterator[list[EngineServer]]:
    """(model, flags) each; all start at the same time."""
    with ExitStack() as stack:
        started = [stack.enter_context(EngineServer(model, *flags)) for model, flags in commands]
        yield [server.ready() for server in started]


@contextmanager
def proxied(mode: str, prefill: EngineServer, *takers: EngineServer) -> Iterator[Pair]:
    """A pair with a proxy before its first taker."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def call(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(WAIT_S)

    proxy = Proxy(prefill.url, takers[0].url, TransferMode(mode))
    call(proxy.__aenter__())
    pair = Pair(mode, prefill, takers, client(proxy.url), proxy.transfer_ids)
    try:
        yield pair
    finally:
        call(proxy.__aexit__())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.close()
        pair._threads.shutdown(wait=False, cancel_futures=True)


def role(name: str, *flags: str) -> tuple[str, ...]:
    """Flags of a server with a role."""
    return ("--role", name, "--restart-engine", *flags)


@contextmanager
def server_pair(model: Path, mode: str, *flags: str) -> Iterator[Pair]:
    """A prefill and a decode server with the same flags, the first with a control endpoint on a fixed port."""
    fixed = ("--side-channel-port", str(free_port()))
    commands = ((model, role("prefill", *fixed, *flags)), (model, role("decode", *flags)))
    with servers(*commands) as (prefill, decode), proxied(mode, prefill, decode) as pair:
        yield pair
