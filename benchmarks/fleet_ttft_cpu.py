"""Measure the time to first token of a pair behind a router, beside that of one engine, in one run.

    python benchmarks/fleet_ttft_cpu.py MODEL_FOLDER [--output FILE]

Three servers on one machine, with as many threads each: a single `baton serve`, and behind `baton route` a prefill
and a decode server, in push and then in pull. One request at a time (light load), in turns to the single server and to
the router: streamed completions of random token ids, fresh ones each time, prefix caching off. TTFT is from sending to
the first event with a choice, TPOT as in server_cpu.py; medians over requests. A ratio over 1 says that the pair is
slower.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from engine_cpu import machine, write_report
from server_cpu import Timed, ask

READY = "Baton is ready at http://"


def main() -> None:
    """Measure both modes, print, write the result file."""
    args = parse()
    report: dict[str, Any] = {
        "machine": machine(),
        "workload": {"model": args.model.name, "input_tokens": args.input_tokens, "output_tokens": args.output_tokens}
        | {"requests": args.requests, "dtype": args.dtype, "threads_each": args.threads},
    }
    for mode in ("push", "pull"):
        report[mode] = measure(mode, args)
    print(json.dumps({mode: report[mode] for mode in ("push", "pull")}, indent=2))
    if args.output:
        write_report(report, args.output)


def parse() -> argparse.Namespace:
    """Arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="Hugging Face folder")
    parser.add_argument("--input-tokens", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--output-tokens", type=int, default=16)
    parser.add_argument("--requests", type=int, default=12, help="to each, after two that are not counted")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1, help="of each engine")
    parser.add_argument("--output", type=Path, help="result file (JSON)")
    return parser.parse_args()


def measure(mode: str, args: argparse.Namespace) -> dict[str, Any]:
    """One mode: figures by input length."""
    with ExitStack() as stack:
        serve = ["serve", str(args.model), "--served-model-name", "model", "--device", "cpu", "--dtype", args.dtype]
        serve += ["--max-model-len", "2048", "--kv-cache-tokens", "16384", "--no-enable-prefix-caching"]
        roles = [[], ["--role", "prefill"], ["--role", "decode"]]
        single, prefill, decode = (start(stack, [*serve, *role], args.threads) for role in roles)
        route = ["route", "--mode", mode, "--prefill", url(prefill), "--decode", url(decode)]
        router = start(stack, route, args.threads)
        return {str(length): asyncio.run(turns(single, router, length, args)) for length in args.input_tokens}


def start(stack: ExitStack, command: list[str], threads: int) -> int:
    """A server on a free port of the loopback, once it is ready; its port. Ended with the stack."""
    process = subprocess.Popen(
        [sys.executable, "-m", "baton", *command, "--host", "127.0.0.1", "--port", "0"],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stack.callback(process.wait, 30)
    stack.callback(process.send_signal, signal.SIGTERM)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith(READY):
        sys.exit(f"baton {command[0]} did not start")
    return int(line.strip().rpartition(":")[2])


def url(port: int) -> str:
    """Of a server of this machine."""
    return f"http://127.0.0.1:{port}"


async def turns(single: int, router: int, length: int, args: argparse.Namespace) -> dict[str, Any]:
    """Requests one by one, to the single server and to the router in turns."""
    rng = random.Random(length)
    timed: dict[int, list[Timed]] = {single: [], router: []}
    for _ in range(args.requests + 2):
        for port in timed:
            prompt = [rng.randrange(100, 40_000) for _ in range(length)]
            timed[port].append(await ask(port, prompt, args.output_tokens))
    alone, pair = (figures(timed[port][2:]) for port in (single, router))
    return {
        "single": alone,
        "pair": pair,
        "ttft_ratio": pair["ttft_ms"] / alone["ttft_ms"],
        "tpot_ratio": pair["tpot_ms"] / alone["tpot_ms"],
    }


def figures(timed: list[Timed]) -> dict[str, float]:
    """Medians."""
    return {
        "ttft_ms": statistics.median((t.first_s - t.start_s) * 1e3 for t in timed),
        "tpot_ms": statistics.median((t.last_s - t.first_s) * 1e3 / (t.num_tokens - 1) for t in timed),
    }


if __name__ == "__main__":
    main()
