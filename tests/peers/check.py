"""Real peers: `baton route` before two vLLM servers, and vLLM's router before two Baton servers.

    python -m tests.peers.check MODEL [--vllm PEER/bin/vllm] [--vllm-router PEER/bin/vllm-router] [--only NAME]

Runs what is installed, prints a table, says what is missing, and fails if a row is not ok. MODEL is a Hugging Face
folder with a chat template, in float32 on all sides. Some minutes on two cores; at most two engines of vLLM at a time.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.peers.questions import TEN
from tests.peers.rows import Row
from tests.peers.vllm_pair import vllm_pair_rows
from tests.peers.vllm_router import vllm_router_rows

PEERS = ("vllm-pull", "vllm-push", "vllm-router")
_BATON_FLAGS = ("--max-model-len", "1024", "--kv-cache-tokens", "8192")


def main() -> int:
    """Exit code 0 if every row is ok and at least one peer is there."""
    options = _parse()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, _time_is_up)
    signal.signal(signal.SIGALRM, _time_is_up)
    signal.alarm(options.timeout_s)
    chosen = options.only or list(PEERS)
    rows: list[Row] = []
    missing: list[str] = []
    for name in chosen:
        command = options.vllm_router if name == "vllm-router" else options.vllm
        if command is None or not Path(command).is_file():
            missing.append(name)
            continue
        print(f"{name} ...", file=sys.stderr)
        rows += _rows(name, Path(command), options.model.resolve())
    _print_table(rows)
    for name in missing:
        print(f"{name}: not run; name its command with --{name.removesuffix('-pull').removesuffix('-push')}")
    failed = sum(not row.ok for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} ok")
    return 0 if rows and not failed else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--vllm", default=os.environ.get("BATON_VLLM"), help="command; also $BATON_VLLM")
    parser.add_argument("--vllm-router", default=os.environ.get("BATON_VLLM_ROUTER"), help="also $BATON_VLLM_ROUTER")
    parser.add_argument("--only", action="append", choices=PEERS, help="may be given several times")
    parser.add_argument("--timeout-s", type=int, default=1800, help="for all of it")
    return parser.parse_args()


def _rows(name: str, command: Path, model: Path) -> Iterator[Row]:
    """A peer that does not start or breaks down is one row that is not ok."""
    try:
        if name == "vllm-router":
            yield from vllm_router_rows(command, model, TEN, *_BATON_FLAGS)
        else:
            yield from vllm_pair_rows(command, model, name.removeprefix("vllm-"))
    except (AssertionError, OSError, ValueError) as error:
        yield Row(peer=name, way="", question="runs to its end", ok=False, note=f"{type(error).__name__}: {error}")


def _print_table(rows: list[Row]) -> None:
    cells = [("peer", "way", "question", "", "note")]
    cells += [(row.peer, row.way, row.question, "ok" if row.ok else "FAILED", row.note) for row in rows]
    widths = [max(len(cell[column]) for cell in cells) for column in range(4)]
    for cell in cells:
        print("  ".join(text.ljust(width) for text, width in zip(cell, widths, strict=False)), cell[4], sep="  ")


def _time_is_up(signum: int, frame: object) -> None:
    """Unwind through everything that ends a process."""
    raise SystemExit(f"ended by {signal.Signals(signum).name}")


if __name__ == "__main__":
    sys.exit(main())
