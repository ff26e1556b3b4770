"""Measure one KV hand-off between two processes on one GPU (or in host memory): our agent, our block layout.

    PYTHONPATH=src python benchmarks/gpu/handoff_probe.py --sweep --output probe.json
    python benchmarks/gpu/handoff_probe.py --device cpu --tokens 640 --layers 4 --repeat 2

The giver's blocks [block][head][layer][K|V][token][head_dim] are written to the taker's. Cases:

    contiguous  both block lists ascending: neighbours merge into one descriptor
    shuffled    block lists in random order: about a descriptor a block
    pieces      the shuffled bytes in runs of 32 KiB, as layouts with the layer first have them
    read        the taker's side of pull: the giver READs --read-blocks shuffled blocks, once (emulated READs are slow)

Figures, medians of --repeat after one warm-up (whose time is `cold`): descriptors; `prepare`, making them from block
lists; `post`, the call of Agent.post; `land`, from the beginning of the post until the other process has the notice;
`end`, until the poster knows; GB/s of `land` (for `read` of `end`). The bytes are compared after every case.
With --sweep the whole is done with several settings of UCX and with NIXL's progress thread. Every process ends by
itself after --limit seconds.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import platform
import random
import statistics
import subprocess
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from baton.core.geometry import RankGeometry
from baton.transfer.agent import Direction, Moves
from baton.transfer.mapping import map_ranks
from baton.transfer.moves import kv_moves
from baton.transfer.nixl_agent import NixlAgent

PIECE_BYTES = 32 << 10
READ_S = 20.0
"""A READ that takes longer is given up, and with it the process."""

SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "get-zcopy-auto": {"UCX_CUDA_IPC_ENABLE_GET_ZCOPY": "auto"},
    "streams-1": {"UCX_CUDA_IPC_MAX_STREAMS": "1"},
    "poll-64": {"UCX_CUDA_IPC_MAX_POLL": "64"},
    "progress-thread": {"PROBE_PROGRESS_THREAD": "1"},
}
"""UCX itself turns cuda_ipc's GETs off where it sees no NVLink ("get-zcopy-auto"); `NixlAgent` turns them on."""


def main() -> None:
    """Run the settings, write --output, print the table last."""
    args = parse()
    settings = SETTINGS if args.sweep else {name: SETTINGS[name] for name in args.settings}
    report: dict[str, Any] = {"versions": versions(), "arguments": vars(args), "settings": settings, "runs": {}}
    for name, environment in settings.items():
        print(f"-- {name}: {environment}", flush=True)
        report["runs"][name] = run_pair(args, environment)
        if args.output:
            Path(args.output).write_text(json.dumps(report, indent=1))
    print_table(report)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tokens", type=int, default=16000)
    parser.add_argument("--block-tokens", type=int, default=64)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--read-blocks", type=int, default=16)
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=["default"])
    parser.add_argument("--sweep", action="store_true", help="all settings")
    parser.add_argument("--limit", type=float, default=110.0, help="seconds for one setting")
    parser.add_argument("--output", help="JSON file")
    return parser.parse_args()


def versions() -> dict[str, str]:
    """Of what the figures depend on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("nixl", "nixl-cu13", "nixl-cu12", "torch", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        found["gpu"] = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        found["gpu"] = "none"
    return found


def run_pair(args: argparse.Namespace, environment: dict[str, str]) -> dict[str, Any]:
    """Giver and taker with these variables; what the giver reported until it ended or the time was over."""
    context = multiprocessing.get_context("spawn")
    reports, from_giver = context.Pipe(duplex=False)
    to_taker, to_giver = context.Pipe()
    saved = dict(os.environ)
    os.environ.update(environment)
    processes = [
        context.Process(target=guarded, args=(role, args, *pipes))
        for role, pipes in (("giver", (to_taker, from_giver)), ("taker", (to_giver, None)))
    ]
    for process in processes:
        process.start()
    os.environ.clear()
    os.environ.update(saved)
    for pipe in (from_giver, to_taker, to_giver):
        pipe.close()
    run: dict[str, Any] = {}
    deadline = time.monotonic() + args.limit + 5
    try:
        while reports.poll(max(0.0, deadline - time.monotonic())):
            run.update(reports.recv())
        run.setdefault("error", "time is over")
    except EOFError:
        pass
    for process in processes:
        process.join(5)
        process.kill()
        process.join(5)
    if "done" not in run:
        run.setdefault("error", f"ended early, exit codes {[process.exitcode for process in processes]}")
    return run


def guarded(role: str, args: argparse.Namespace, other: Connection, reports: Connection | None) -> None:
    """A role in its process, which ends after --limit seconds whatever it waits for."""
    watchdog = threading.Timer(args.limit, os._exit, (9,))
    watchdog.daemon = True
    watchdog.start()
    try:
        side = Side(role, args, other)
        if role == "taker":
            side.serve()
        else:
            assert reports is not None
            give(side, reports.send)
            reports.send({"done": True})
            other.send("end")
    except Exception as error:
        traceback.print_exc()
        if reports is not None:
            reports.send({"error": f"{type(error).__name__}: {error}"})
    os._exit(0)  # a READ given up may still be under way: nothing is taken down in order


class Side:
    """One process: its pool of blocks, its agent, and a pipe to the other process.

    The taker answers on the pipe: when (CLOCK_MONOTONIC) each notice came, and what its blocks hold.
    """

    def __init__(self, role: str, args: argparse.Namespace, other: Connection) -> None:
        import torch

        if os.environ.get("PROBE_PROGRESS_THREAD"):
            use_progress_thread()
        self.other = other
        device = None if args.device == "cpu" else 0
        if device is not None:
            torch.cuda.set_device(device)
        num_blocks = -(-args.tokens // args.block_tokens)
        block_bytes = args.layers * args.heads * 2 * args.block_tokens * args.head_dim * 2
        self.pool = torch.zeros((num_blocks, block_bytes), dtype=torch.uint8, device=args.device)
        self.synchronize: Callable[[], None] = (lambda: None) if device is None else torch.cuda.synchronize
        self.geometry = RankGeometry(
            base_address=self.pool.data_ptr(),
            num_blocks=num_blocks,
            block_tokens=args.block_tokens,
            first_head=0,
            num_heads=args.heads,
            first_layer=0,
            num_layers=args.layers,
            head_dim=args.head_dim,
            dtype_bytes=2,
        )
        self.agent = NixlAgent(f"{role}-{os.getpid()}", gpu=args.device == "cuda")
        self.synchronize()
        self.agent.register(self.pool.data_ptr(), self.pool.numel(), device)
        other.send((self.agent.metadata(), self.geometry))
        metadata, self.peer_geometry = other.recv()
        self.peer = self.agent.connect(metadata)
        self.args = args

    def fill(self, values: list[int]) -> None:
        """Block i gets values[i] in every byte."""
        import torch

        self.pool[:] = torch.tensor(values, dtype=torch.uint8, device=self.pool.device)[:, None]
        self.synchronize()

    def contents(self) -> list[int]:
        """The value of each block's bytes; -1 where they differ."""
        low, high = self.pool.amin(dim=1).tolist(), self.pool.amax(dim=1).tolist()
        return [a if a == b else -1 for a, b in zip(low, high, strict=True)]

    def serve(self) -> None:
        """The taker's part."""
        while True:
            for _ in self.agent.poll()[1]:
                self.other.send(time.monotonic())
            if self.other.poll():
                question = self.other.recv()
                if question == "end":
                    return
                self.other.send(self.contents() if question == "contents" else self.fill(question))

    def ask(self, question: Any) -> Any:
        """Of the taker: "contents", or a fill."""
        self.other.send(question)
        return self.other.recv()


def use_progress_thread() -> None:
    """Make NixlAgent's back end poll in a thread of its own, for comparison."""
    import nixl._api as api

    plain = api.nixl_agent_config
    api.nixl_agent_config = lambda **options: plain(**{**options, "enable_prog_thread": True})


def give(side: Side, report: Callable[[dict[str, Any]], None]) -> None:
    """The giver's part: every case, the slow ones last."""
    num_blocks = side.geometry.num_blocks
    values = [1 + i % 250 for i in range(num_blocks)]
    side.fill(values)
    ascending = list(range(num_blocks))
    here, there = (random.Random(seed).sample(ascending, num_blocks) for seed in (1, 2))
    expected = [0] * num_blocks
    for source, destination in zip(here, there, strict=True):
        expected[destination] = values[source]
    cases: dict[str, tuple[Callable[[], Moves], list[int], int]] = {
        "contiguous": (lambda: moves(side, ascending, ascending), values, side.args.repeat),
        "shuffled": (lambda: moves(side, here, there), expected, side.args.repeat),
        "pieces": (lambda: pieces(moves(side, here, there)), expected, min(3, side.args.repeat)),
    }
    for name, (make, wanted, repeat) in cases.items():
        report({name: write(side, make, wanted, repeat)})
    report({"read": read(side, here, there)})


def moves(side: Side, here: list[int], there: list[int]) -> Moves:
    """The product's own descriptors for these block lists."""
    (share,) = map_ranks([side.geometry], [side.peer_geometry])
    last = len(here) * side.geometry.block_tokens
    return kv_moves(side.geometry, side.peer_geometry, share, here, there, first_token=0, last_token=last)


def pieces(whole: Moves) -> Moves:
    """The same bytes in runs of at most PIECE_BYTES."""
    counts = -(-whole[:, 2] // PIECE_BYTES)
    rows = np.repeat(whole, counts, axis=0)
    offsets = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)) * PIECE_BYTES
    rows[:, 2] = np.minimum(PIECE_BYTES, rows[:, 2] - offsets)
    rows[:, :2] += offsets[:, None]
    return rows


def write(side: Side, make: Callable[[], Moves], wanted: list[int], repeat: int) -> dict[str, Any]:
    """One case: a warm-up and `repeat` hand-overs with a notice; compares what arrived."""
    side.ask([0] * len(wanted))
    samples = [write_once(side, make) for _ in range(1 + repeat)]
    cold, warm = samples[0], samples[1:]
    figures: dict[str, Any] = {key: statistics.median(sample[key] for sample in warm) for key in cold}
    figures["cold_land_ms"] = cold["land_ms"]
    figures["gb_s"] = figures["bytes"] / figures["land_ms"] / 1e6
    figures["correct"] = side.ask("contents") == wanted
    figures["samples"] = samples
    return figures


def write_once(side: Side, make: Callable[[], Moves]) -> dict[str, float]:
    begun = time.monotonic()
    rows = make()
    prepared = time.monotonic()
    post = side.agent.post(Direction.WRITE, side.peer, rows, b"done")
    posted = time.monotonic()
    ended = finish(side, post, side.args.limit)
    arrived = side.other.recv()
    return {
        "descriptors": len(rows),
        "bytes": int(rows[:, 2].sum()),
        "prepare_ms": (prepared - begun) * 1e3,
        "post_ms": (posted - prepared) * 1e3,
        "land_ms": (arrived - prepared) * 1e3,
        "end_ms": (ended - prepared) * 1e3,
    }


def read(side: Side, here: list[int], there: list[int]) -> dict[str, Any]:
    """READ some of the taker's blocks into the giver's, once warm and once measured, each bounded by READ_S."""
    count = min(side.args.read_blocks, len(here))
    side.ask([7] * len(here))
    rows = moves(side, here[:count], there[:count])[:, [1, 0, 2]]
    figures: dict[str, Any] = {"descriptors": len(rows), "bytes": int(rows[:, 2].sum())}
    for key in ("cold_end_ms", "end_ms"):
        begun = time.monotonic()
        post = side.agent.post(Direction.READ, side.peer, rows)
        figures["post_ms"] = (time.monotonic() - begun) * 1e3
        try:
            figures[key] = (finish(side, post, READ_S) - begun) * 1e3
        except TimeoutError as error:
            return {**figures, "error": str(error)}
    figures["gb_s"] = figures["bytes"] / figures["end_ms"] / 1e6
    side.synchronize()
    contents = side.contents()
    figures["correct"] = all(contents[block] == 7 for block in here[:count])
    return figures


def finish(side: Side, post: int, limit_s: float) -> float:
    """Poll until the post has ended; when it did."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        for ended in side.agent.poll()[0]:
            if ended.error is not None:
                raise RuntimeError(ended.error)
            if ended.post == post:
                return time.monotonic()
    raise TimeoutError(f"not finished within {limit_s:.0f} s")


def print_table(report: dict[str, Any]) -> None:
    """A line a case; the versions below."""
    columns = ("descriptors", "prepare_ms", "post_ms", "land_ms", "end_ms", "cold_land_ms", "gb_s")
    print(f"{'setting':16}{'case':12}" + "".join(f"{column:>14}" for column in columns) + "  bytes")
    for setting, run in report["runs"].items():
        for case, figures in run.items():
            if isinstance(figures, dict):
                cells = "".join(f"{figures[c]:>14.6g}" if c in figures else f"{'-':>14}" for c in columns)
                verdict = {True: "right", False: "WRONG"}.get(figures.get("correct"), figures.get("error", "?"))
                print(f"{setting:16}{case:12}{cells}  {verdict}")
        if "error" in run:
            print(f"{setting:16}{run['error']}")
    print(json.dumps(report["versions"]))


if __name__ == "__main__":
    main()
