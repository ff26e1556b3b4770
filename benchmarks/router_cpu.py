"""Measure what a router costs: its CPU time a request, and how much later a stream's first chunk comes through it.

    python benchmarks/router_cpu.py [--peer PEER/bin/vllm-router] [--output FILE]

Workers are stubs (stub_worker.py) that answer at once: one that prefills, one that decodes, hand-over by pull. Routers
take turns in front of them, each in a process of its own:

    baton         `baton route` before workers of others, as the peer's are
    baton-own     `baton route` before workers that are Baton's: it relays token 1, and follows the ids of each stream
    vllm-router   the peer, in prefill/decode mode with its default options
    direct        no router: the client asks the stub that decodes

Figures of a turn: CPU ms a request (user + system time of the router's process over the requests of a closed loop),
plain and streamed; median ms from sending to the first byte of a stream, at set rates with requests sent at equal
distances. Of all rounds the least counts, since other work on a machine only ever adds; added ms is a router's least
over the direct one's. Client and stubs run on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from engine_cpu import machine, write_report

HERE = Path(__file__).parent
START_S, REQUEST_S = 60, 60
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PROMPT = "The harbour froze from the shore outward, and the pilot walked a little further every morning."


def main() -> None:
    """Measure in turns, print a table, write the result file."""
    args = parse()
    names = ["baton", "baton-own", *(["vllm-router"] if args.peer else []), "direct"]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for turn in range(args.rounds):
        for name in names if turn % 2 == 0 else names[::-1]:
            rounds[name].append(measure(name, args))
            print(f"round {turn + 1}, {name}: {rounds[name][-1]}", file=sys.stderr)
    report = summarise(rounds, args)
    print_table(report)
    if args.output:
        write_report(report, args.output)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="the vllm-router command")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each router")
    parser.add_argument("--requests", type=int, default=2000, help="of each closed loop")
    parser.add_argument("--clients", type=int, default=16, help="of each closed loop")
    parser.add_argument("--rates", type=int, nargs="+", default=[100, 200], help="requests a second")
    parser.add_argument("--seconds", type=float, default=5, help="at each rate")
    parser.add_argument("--chunks", type=int, default=16, help="of a stream")
    parser.add_argument("--gap-ms", type=float, default=0, help="between two chunks")
    parser.add_argument("--output", type=Path, help="result file (JSON)")
    return parser.parse_args()


def measure(name: str, args: argparse.Namespace) -> dict[str, float]:
    """Start two stubs and a router, ask through it, end them."""
    prefill, decode, port, figures = free_ports(4)
    kind = "baton" if name == "baton-own" else "openai"
    with ExitStack() as stack:
        for role, stub_port in (("prefill", prefill), ("decode", decode)):
            command = [sys.executable, str(HERE / "stub_worker.py"), str(stub_port), role, kind]
            start(stack, [*command, str(args.chunks), str(args.gap_ms)], stub_port)
        if name == "direct":
            return uvloop.run(loads(decode, None, args))
        workers = ["--prefill", f"http://127.0.0.1:{prefill}", "--decode", f"http://127.0.0.1:{decode}"]
        here = ["--host", "127.0.0.1", "--port", str(port)]
        if name == "vllm-router":
            command = [args.peer, "--vllm-pd-disaggregation", *workers, *here, "--prometheus-port", str(figures)]
        else:
            command = [sys.executable, "-m", "baton", "route", "--mode", "pull", *workers, *here]
        return uvloop.run(loads(port, start(stack, command, port), args))


def free_ports(number: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports: list[int] = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def start(stack: ExitStack, command: list[str], port: int) -> int:
    """A process that ends with the stack, once its /health answers 200. Returns its id."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    stack.callback(end, process)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"{command} ended with code {process.returncode} before it was ready")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return process.pid
        except OSError:
            time.sleep(0.1)
    sys.exit(f"{command} was not ready in {START_S} s")


def end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


async def loads(port: int, pid: int | None, args: argparse.Namespace) -> dict[str, float]:
    """All loads of a turn. pid: whose CPU time counts; None: nobody's."""
    found: dict[str, float] = {}
    for name, stream in (("plain", False), ("streamed", True)):
        client = Client(port, stream=stream, num_chunks=args.chunks)
        await client.closed_loop(args.clients * 10, args.clients)
        before_s, started_s = cpu_s(pid), time.perf_counter()
        await client.closed_loop(args.requests, args.clients)
        found[f"{name}_req_s"] = args.requests / (time.perf_counter() - started_s)
        if pid is not None:
            found[f"{name}_cpu_ms"] = (cpu_s(pid) - before_s) / args.requests * 1e3
    for rate in args.rates:
        firsts_s = await client.open_loop(round(rate * args.seconds), rate)
        found[f"first_ms_at_{rate}"] = statistics.median(firsts_s) * 1e3
        found[f"first_p99_ms_at_{rate}"] = statistics.quantiles(firsts_s, n=100)[98] * 1e3
    return found


def cpu_s(pid: int | None) -> float:
    """User and system time of a process, all its threads."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


class Client:
    """Sends one body again and again, over kept connections."""

    def __init__(self, port: int, *, stream: bool, num_chunks: int) -> None:
        self._port = port
        self._idle: list[Exchange] = []
        self._num_texts = num_chunks if stream else 1
        body = {"model": "model", "prompt": PROMPT, "max_tokens": num_chunks, "temperature": 0, "stream": stream}
        data = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        self._request = f"{head}content-length: {len(data)}\r\n\r\n".encode() + data

    async def closed_loop(self, num_requests: int, num_clients: int) -> None:
        """Each client sends the next one when the last has ended."""
        left = iter(range(num_requests))

        async def run() -> None:
            for _ in left:
                await self._ask()

        await asyncio.gather(*(run() for _ in range(num_clients)))

    async def open_loop(self, num_requests: int, rate: float) -> list[float]:
        """Requests at equal distances. Returns seconds to the first byte of each answer's body."""
        loop, asked = asyncio.get_running_loop(), []
        started_s = loop.time()
        for number in range(num_requests):
            await asyncio.sleep(max(0.0, started_s + number / rate - loop.time()))
            asked.append(asyncio.create_task(self._ask()))
        return list(await asyncio.gather(*asked))

    async def _ask(self) -> float:
        loop = asyncio.get_running_loop()
        if self._idle:
            exchange = self._idle.pop()
        else:
            _, exchange = await loop.create_connection(Exchange, "127.0.0.1", self._port)
        async with asyncio.timeout(REQUEST_S):
            timed = await exchange.ask(self._request)
        if timed.status != b"200" or timed.num_texts != self._num_texts:
            sys.exit(f"an answer with status {timed.status!r} and {timed.num_texts} texts")
        self._idle.append(exchange)
        return timed.first_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """An answer: seconds until its body began, its status, its chunks."""

    first_s: float
    status: bytes
    num_texts: int


class Exchange(asyncio.Protocol):
    """A connection, read with as little work as possible."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._answer: asyncio.Future[Timed]
        self._data = b""
        self._sent_s = self._first_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the connection was closed inside an answer"))

    async def ask(self, request: bytes) -> Timed:
        """Send it, and wait for the end of its answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self._data, self._first_s, self._sent_s = b"", 0.0, time.perf_counter()
        self._transport.write(request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        if not self._first_s and len(self._data) > end + 4:
            self._first_s = now_s - self._sent_s
        if self._complete(end):
            status = self._data[9:12]
            num_texts = self._data.count(b'"text":')
            self._answer.set_result(Timed(first_s=self._first_s, status=status, num_texts=num_texts))

    def _complete(self, end: int) -> bool:
        head = self._data[:end].lower()
        _, found, value = head.partition(b"content-length:")
        if found:
            return len(self._data) >= end + 4 + int(value.split(b"\r\n")[0])
        return self._data.endswith(b"0\r\n\r\n")


def summarise(rounds: dict[str, list[dict[str, float]]], args: argparse.Namespace) -> dict[str, Any]:
    """The least of each figure (of requests a second, the most), added times, and ratios to the peer's."""
    names = ("rounds", "requests", "clients", "rates", "seconds", "chunks", "gap_ms")
    report: dict[str, Any] = {"machine": machine(), "workload": {name: getattr(args, name) for name in names}}
    for name, figures in rounds.items():
        best = {key: (max if key.endswith("_req_s") else min)(each[key] for each in figures) for key in figures[0]}
        report[name] = {**best, "rounds": figures}
    for name in rounds:
        for rate in args.rates:
            key = f"first_ms_at_{rate}"
            report[name][f"added_ms_at_{rate}"] = report[name][key] - report["direct"][key]
    if "vllm-router" in rounds:
        report["cpu_over_peer"] = {
            name: {
                kind: report[name][kind] / report["vllm-router"][kind] for kind in ("plain_cpu_ms", "streamed_cpu_ms")
            }
            for name in ("baton", "baton-own")
        }
    return report


def print_table(report: dict[str, Any]) -> None:
    rates = report["workload"]["rates"]
    heads = ["plain CPU ms", "streamed CPU ms", "streamed req/s", *(f"added ms at {rate}/s" for rate in rates)]
    keys = ["plain_cpu_ms", "streamed_cpu_ms", "streamed_req_s", *(f"added_ms_at_{rate}" for rate in rates)]
    print(f"{'':12}" + "".join(f"{head:>18}" for head in heads))
    for name in ("baton", "baton-own", "vllm-router", "direct"):
        if name in report:
            cells = (f"{report[name][key]:18.3f}" if key in report[name] else f"{'-':>18}" for key in keys)
            print(f"{name:12}" + "".join(cells))
    for name, ratio in report.get("cpu_over_peer", {}).items():
        print(
            f"CPU of {name} over the peer's: plain {ratio['plain_cpu_ms']:.2f}, streamed {ratio['streamed_cpu_ms']:.2f}"
        )


if __name__ == "__main__":
    main()
