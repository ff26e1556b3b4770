"""The sweep of `baton bench sweep` on a vLLM pair behind `baton route`: pull (NixlConnector), push (NixlPushConnector).

    python -m benchmarks.sweep_vllm_cpu MODEL_FOLDER --vllm PEER/bin/vllm --results-dir DIR -- SWEEP_OPTIONS

One pair at a time, in float32, a core an engine; a fresh one for each mode and iteration, in alternating order, as
`bench sweep --up` does it. SWEEP_OPTIONS: rates, lengths, requests; with those of a Baton sweep, prompts and arrivals
are the same. Goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.peers.questions import MODEL
from tests.peers.vllm_pair import baton_router, vllm_server

MODES = ("push", "pull")
CORES = {"prefill": 0, "decode": 1}


def main() -> None:
    """All turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--vllm", type=Path, required=True)
    parser.add_argument("--results-dir", type=Path, required=True)
    parser.add_argument("--iterations", type=int, default=3)
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:end])
    for iteration in range(args.iterations):
        for mode in MODES if iteration % 2 == 0 else MODES[::-1]:
            turn(args, words[end + 1 :], mode, iteration)


def turn(args: argparse.Namespace, sweep_options: list[str], mode: str, iteration: int) -> None:
    """All cases of one mode and iteration."""
    with ExitStack() as stack:
        pair = [
            stack.enter_context(vllm_server(args.vllm, args.model.resolve(), role, mode, core))
            for role, core in CORES.items()
        ]
        router = stack.enter_context(baton_router([each.registration() for each in pair], mode))
        command = [sys.executable, "-m", "baton", "bench", "sweep", "--results-dir", str(args.results_dir)]
        command += ["--server", f"{mode}={router.url}", "--model", MODEL, "--iterations", str(iteration + 1)]
        subprocess.run([*command, *sweep_options], check=True)


if __name__ == "__main__":
    main()
