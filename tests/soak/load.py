"""Rounds of 300 streaming clients of which a third leave, and 50 slow readers: what they see, what the server keeps.

python -m tests.soak.load --engine stub|tiny|MODEL [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.serving import Server, stub_server
from tests.server.harness import VOCAB, byte_tokenizer
from tests.soak.client import Connection, Outcome, ask_for, stream
from tests.soak.quiet import num_files, rss_mib, wait_idle
from tests.soak.tiny import baton_serve, tiny_server

SLOW_BYTES_A_S = 300
KV_TOKENS = 160_000
WARM_UP_CROWDS = 5
# A name that slow readers ask for, and get back in every chunk: the kernel buffers up to 4 MiB of an answer by itself.
LONG_NAME = "slow" * 1000
_SMALL_BUFFER = 4096
_SETTLE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything.

    Attributes:
        tokens: of an answer; slow_tokens: of one for a slow reader; probe_tokens: of one whose gaps are measured.
        never: slow readers that do not read at all.
    """

    clients: int = 300
    tokens: int = 120
    slow: int = 50
    never: int = 10
    slow_tokens: int = 3000
    probes: int = 8
    probe_tokens: int = 400


def start(engine: str, folder: Path) -> Server:
    """A ready server."""
    if engine == "stub":
        stub = {"tokenizer": str(byte_tokenizer(folder)), "vocab_size": VOCAB, "max_model_len": 8192, "step_s": 0.002}
        stub["kv_cache_tokens"] = KV_TOKENS  # small enough that the warm-up round writes every block once
        return stub_server(stub=stub, served_model_names=("MODEL", LONG_NAME)).ready()
    flags = ("--max-model-len", "8192", "--max-num-seqs", "256", "--served-model-name", LONG_NAME)
    if engine == "tiny":
        return tiny_server(folder, *flags, "--kv-cache-tokens", str(KV_TOKENS)).ready()
    return baton_serve(engine, *flags, "--kv-cache-tokens", "65536").ready()


async def crowd(url: str, sizes: Sizes, seed: int) -> Counter[str]:
    """All clients at once; every third leaves at a random point, some before the first byte."""
    draw = random.Random(seed)
    asked = []
    for i in range(sizes.clients):
        leave = draw.choice((0, 1, draw.randrange(sizes.tokens))) if i % 3 == 0 else None
        asked.append(stream(url, ask_for(sizes.tokens, seed * 1000 + i), leave_after=leave))
    outcomes = await asyncio.gather(*asked)
    return Counter(outcome.kind(sizes.tokens) for outcome in outcomes)


def check_crowd(kinds: Counter[str], sizes: Sizes, *, limited: bool = False) -> None:
    """Complete or left, and nothing else; with limits on purpose, refused with Retry-After too.

    Raises:
        AssertionError: something else was seen.
    """
    allowed = {"complete", "left"} | ({"refused"} if limited else set())
    assert set(kinds) <= allowed, kinds
    if not limited:
        assert kinds["complete"] == sizes.clients - kinds["left"] >= sizes.clients * 2 // 3, kinds


class SlowReaders:
    """Clients that asked for a long answer and read a few hundred bytes a second of it, or nothing."""

    def __init__(self, url: str, sizes: Sizes) -> None:
        self._sizes = sizes
        self._connections = [Connection(url, receive_bytes=_SMALL_BUFFER) for _ in range(sizes.slow)]
        self._readers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Send every request and begin to read slowly."""
        for i, connection in enumerate(self._connections):
            body = ask_for(self._sizes.slow_tokens, 10_000_000 + i) | {"model": LONG_NAME}
            await connection.ask("/v1/completions", body)
        self._readers = [asyncio.create_task(_dawdle(c)) for c in self._connections[self._sizes.never :]]

    async def wake(self, count: int) -> list[Outcome]:
        """Some that never read now read everything, as fast as it comes."""
        return await asyncio.gather(*(c.read_all() for c in self._connections[:count]))

    async def leave(self) -> None:
        """All close their connections."""
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for i, connection in enumerate(self._connections):
            connection.leave(reset=bool(i % 2))


async def _dawdle(connection: Connection) -> None:
    while await connection.read(SLOW_BYTES_A_S):
        await asyncio.sleep(1)


async def probe(url: str, sizes: Sizes, seed: int) -> list[float]:
    """Gaps between the chunks of a few ordinary clients, in seconds."""
    outcomes = await asyncio.gather(
        *(stream(url, ask_for(sizes.probe_tokens, seed * 1000 + i)) for i in range(sizes.probes))
    )
    for outcome in outcomes:
        assert outcome.kind(sizes.probe_tokens) == "complete", outcome.kind(sizes.probe_tokens)
    return [gap for outcome in outcomes for gap in outcome.gaps_s]


def figures(gaps_s: list[float]) -> str:
    """Median and 99th percentile in milliseconds."""
    cuts = statistics.quantiles(gaps_s, n=100)
    return f"p50 {cuts[49] * 1e3:6.2f} ms  p99 {cuts[98] * 1e3:6.2f} ms"


async def beside_slow_readers(server: Server, sizes: Sizes) -> dict[str, list[float]]:
    """Gaps of ordinary clients: alone, beside as many fast readers, beside slow ones while these are generated for,
    and while their answers lie ready. Some of the slow ones then wake and must get the whole answer.

    Raises:
        AssertionError: an answer was not complete.
    """
    gaps = {"alone": await probe(server.url, sizes, 1)}
    fast = [
        asyncio.create_task(stream(server.url, ask_for(sizes.slow_tokens, 20_000_000 + i))) for i in range(sizes.slow)
    ]
    await asyncio.sleep(0.5)
    gaps["beside fast readers"] = await probe(server.url, sizes, 2)
    assert {outcome.kind(sizes.slow_tokens) for outcome in await asyncio.gather(*fast)} == {"complete"}
    slow = SlowReaders(server.url, sizes)
    await slow.start()
    await asyncio.sleep(0.5)
    gaps["beside slow readers"] = await probe(server.url, sizes, 3)
    await asyncio.to_thread(_wait_generated, server)
    gaps["slow readers hang"] = await probe(server.url, sizes, 4)
    woken = await slow.wake(min(5, sizes.never))
    assert {outcome.kind(sizes.slow_tokens) for outcome in woken} <= {"complete"}, woken
    await slow.leave()
    assert all(outcome.events < 0.9 * sizes.slow_tokens for outcome in woken), "the server never had to wait for them"
    return gaps


def _wait_generated(server: Server) -> None:
    from tests.soak.quiet import load_of

    deadline_s = time.monotonic() + 240
    while (load := load_of(server)).running or load.waiting:
        assert time.monotonic() < deadline_s, load
        time.sleep(0.1)


def held(server: Server) -> tuple[float, float]:
    """Memory of server and engine in MiB once nothing is asked."""
    wait_idle(server)
    time.sleep(_SETTLE_S)
    return rss_mib(server.process.pid), rss_mib(server.engine())


def soak(server: Server, sizes: Sizes, rounds: int) -> list[tuple[float, float]]:
    """Rounds of a crowd and slow readers, printed; returns the memory after each, the warm-up round first.

    The allocators need a few crowds until the peak of a second one fits into the holes that the first one left.
    """
    for number in range(WARM_UP_CROWDS):
        check_crowd(asyncio.run(crowd(server.url, sizes, 100 + number)), sizes)
    memory: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        started_s = time.monotonic()
        kinds = asyncio.run(crowd(server.url, sizes, number))
        check_crowd(kinds, sizes)
        crowd_s = time.monotonic() - started_s
        gaps = asyncio.run(beside_slow_readers(server, sizes))
        memory.append(held(server))
        print(f"round {number}: {dict(kinds)} in {crowd_s:.1f} s; all {time.monotonic() - started_s:.0f} s")
        for name, values in gaps.items():
            print(f"    {name:20} {figures(values)}")
        server_mib, engine_mib = memory[-1]
        print(
            f"    server {server_mib:.1f} MiB, engine {engine_mib:.1f} MiB, files {num_files(server.process.pid)}",
            flush=True,
        )
    return memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="stub", help="stub, tiny, or a model's path")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slow-tokens", type=int, default=3000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, start(given.engine, Path(name)) as server:
        print(f"at start: server {rss_mib(server.process.pid):.1f} MiB, engine {rss_mib(server.engine()):.1f} MiB")
        memory = soak(server, Sizes(slow_tokens=given.slow_tokens), given.rounds)
        growth = [last / first - 1 for first, last in zip(memory[0], memory[-1], strict=True)]
        print(f"growth after the warm-up: server {growth[0]:+.1%}, engine {growth[1]:+.1%}", flush=True)
        log = server.stderr()
        assert "Traceback" not in log, log
        assert max(growth) <= 0.05, growth


if __name__ == "__main__":
    main()
