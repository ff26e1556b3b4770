"""Faults: drawn by seed, and done to a fleet."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import zmq

from tests.chaos.processes import Process
from tests.chaos.up import UpFleet
from tests.chaos.verdicts import Downtime
from tests.soak.client import Connection, ask_for

STOPPED_S = 10.0
_ROUTER_BACK_S = 60.0
_TRIES, _TRY_AGAIN_S = 30, 0.5
_SLOW_CLIENTS, _SLOW_BYTES = 4, 64
_GARBAGE_BYTES = 2000
_HALF_REQUEST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n{"
KINDS = (
    "kill engine",
    "kill server",
    "stop engine",
    "stop server",
    "end router",
    "kill router",
    "reset router's connections",
    "reset server's connections",
    "reset side channels",
    "reset data connections",
    "garbage by HTTP",
    "garbage to side channels",
    "slow clients",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One of KINDS. victim: the member it is for, where it is for one."""

    kind: str
    victim: str
    seed: int


def draw_faults(seed: int, count: int, victims: Sequence[str], kinds: Sequence[str] = KINDS) -> list[Fault]:
    """Every kind as often as any other, give or take one, in random order."""
    draw = random.Random(seed)
    drawn = [kinds[number % len(kinds)] for number in range(count)]
    draw.shuffle(drawn)
    return [Fault(kind=kind, victim=draw.choice(victims), seed=draw.randrange(1 << 32)) for kind in drawn]


class Injector:
    """Does faults to a fleet.

    Attributes:
        done: faults that met something, by kind; missed: that found nothing to do, even when tried again.
        downtime: of the router.
    """

    def __init__(self, fleet: UpFleet) -> None:
        self.done: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.downtime = Downtime()
        self._fleet = fleet

    async def do(self, fault: Fault) -> None:
        """Until it is over: a process that is stopped goes on, a router that was killed is back.

        A victim that is down already is waited for.
        """
        for _ in range(_TRIES):
            if await self._acts()[fault.kind](fault):
                self.done[fault.kind] += 1
                return
            await asyncio.sleep(_TRY_AGAIN_S)
        self.missed[fault.kind] += 1

    def _acts(self) -> dict[str, Callable[[Fault], Awaitable[bool]]]:
        fleet = self._fleet
        return {
            "kill engine": lambda fault: self._signal(fleet.engine(fault.victim), signal.SIGKILL),
            "kill server": lambda fault: self._signal(fleet.server(fault.victim), signal.SIGKILL),
            "stop engine": lambda fault: self._stop(fleet.engine(fault.victim)),
            "stop server": lambda fault: self._stop(fleet.server(fault.victim)),
            "end router": lambda fault: self._router(signal.SIGTERM),
            "kill router": lambda fault: self._router(signal.SIGKILL),
            "reset router's connections": lambda fault: self._reset(fleet.router(), self._is_to_worker),
            "reset server's connections": lambda fault: self._reset(fleet.server(fault.victim), self._is_to_worker),
            "reset side channels": self._reset_side_channels,
            "reset data connections": self._reset_data,
            "garbage by HTTP": self._garbage_by_http,
            "garbage to side channels": self._garbage_to_peers,
            "slow clients": self._slow_clients,
        }

    async def _signal(self, pid: int | None, number: signal.Signals) -> bool:
        with suppress(ProcessLookupError):
            if pid is not None:
                with Process(pid) as process:
                    return process.send(number)
        return False

    async def _stop(self, pid: int | None) -> bool:
        if pid is None:
            return False
        with suppress(ProcessLookupError), Process(pid) as process:
            if process.send(signal.SIGSTOP):
                try:
                    await asyncio.sleep(STOPPED_S)
                finally:
                    process.send(signal.SIGCONT)
                return True
        return False

    async def _router(self, number: signal.Signals) -> bool:
        pid, began_s = self._fleet.router(), time.monotonic()
        if not await self._signal(pid, number):
            return False
        span = len(self.downtime.spans_s)
        self.downtime.spans_s.append((began_s, float("inf")))
        deadline_s = began_s + _ROUTER_BACK_S
        while time.monotonic() < deadline_s:
            now = await asyncio.to_thread(self._fleet.router)
            if now not in (None, pid) and await asyncio.to_thread(self._fleet.router_answers):
                break
            await asyncio.sleep(0.1)
        self.downtime.spans_s[span] = (began_s, time.monotonic())
        return True

    async def _reset(self, pid: int | None, chosen: Callable[[set[int]], bool]) -> bool:
        if pid is None:
            return False
        with suppress(ProcessLookupError, FileNotFoundError), Process(pid) as process:
            return process.reset(chosen) > 0
        return False

    def _is_to_worker(self, ports: set[int]) -> bool:
        return not ports.isdisjoint(member.port for member in self._fleet.members.values())

    async def _reset_side_channels(self, fault: Fault) -> bool:
        """Control connections, in both directions."""
        channels = await asyncio.to_thread(self._fleet.side_channels)
        return await self._reset(self._fleet.engine(fault.victim), lambda ports: not ports.isdisjoint(channels))

    async def _reset_data(self, fault: Fault) -> bool:
        """Connections over which KV moves: what an engine has beside the control connections."""
        channels = await asyncio.to_thread(self._fleet.side_channels)
        return await self._reset(self._fleet.engine(fault.victim), channels.isdisjoint)

    async def _garbage_by_http(self, fault: Fault) -> bool:
        """Noise, half a request, and a request that ends in noise, to the router and to a member."""
        draw = random.Random(fault.seed)
        sent = False
        for url in (self._fleet.url, self._fleet.members[fault.victim].url):
            for start in (b"", _HALF_REQUEST, b"GET /stats HTTP/1.1\r\n"):
                sent = _throw(urlsplit(url).port or 0, start + draw.randbytes(_GARBAGE_BYTES)) or sent
        return sent

    async def _garbage_to_peers(self, fault: Fault) -> bool:
        """Noise on the wire, and noise in well-formed ZeroMQ messages."""
        draw = random.Random(fault.seed)
        now = (await asyncio.to_thread(self._fleet.stats, fault.victim)).get("handoff")
        if not now:
            return False
        sent = _throw(now["port"], draw.randbytes(_GARBAGE_BYTES))
        with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
            peer.linger = 200
            peer.connect(f"tcp://127.0.0.1:{now['port']}")
            for _ in range(20):
                peer.send_multipart([draw.randbytes(draw.randrange(60)) for _ in range(draw.randrange(1, 4))])
        return sent

    async def _slow_clients(self, fault: Fault) -> bool:
        """Streams that are read a few bytes a second, by sockets with small buffers, and left."""
        connections = [Connection(self._fleet.url, receive_bytes=4096) for _ in range(_SLOW_CLIENTS)]
        try:
            for number, connection in enumerate(connections):
                await connection.ask("/v1/completions", ask_for(300, fault.seed + number, num_prompt=40))
            for _ in range(int(STOPPED_S)):
                await asyncio.sleep(1)
                for connection in connections:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.05):
                            await connection.read(_SLOW_BYTES)
        except OSError:
            return False
        finally:
            for number, connection in enumerate(connections):
                connection.leave(reset=bool(number % 2))
        return True


def _throw(port: int, data: bytes) -> bool:
    """Send bytes to a port and close at once; returns whether somebody listened."""
    try:
        with closing(socket.create_connection(("127.0.0.1", port), timeout=1)) as connection:
            connection.sendall(data)
            return True
    except OSError:
        return False
