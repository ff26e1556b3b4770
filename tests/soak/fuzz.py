"""Fuzzes a real server of a tiny model with schemathesis: no 5xx, no hang, alive and idle afterwards.

python -m tests.soak.fuzz --seconds 600 [--schemathesis PATH]
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster.serving import Server, alive
from tests.soak.openapi import document
from tests.soak.quiet import num_files, num_sequences, rss_mib, wait_idle
from tests.soak.tiny import tiny_server

# Not asked for: refusing what is malformed (the server reads leniently on purpose) and accepting what is well-formed
# (a schema cannot say that a grammar must compile).
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
_REQUEST_S = 30


def find_schemathesis() -> str | None:
    """The command, from this environment or the PATH."""
    beside = Path(sys.executable).with_name("schemathesis")
    return str(beside) if beside.exists() else shutil.which("schemathesis")


def fuzz(server: Server, folder: Path, *, seconds: int, schemathesis: str, seeds: list[int]) -> str:
    """Run a fuzzer for each seed, side by side, against a server that is up; returns their reports.

    Processes and not threads: Python 3.11 cannot compile in two threads at once near its recursion limit.

    Raises:
        AssertionError: one found something, the server died, hung or kept something.
    """
    (folder / "openapi.json").write_text(json.dumps(document("MODEL")))
    engine = server.engine()
    fuzzers = [_start(server, folder, seconds=seconds, schemathesis=schemathesis, seed=seed) for seed in seeds]
    reports = []
    try:
        for fuzzer in fuzzers:
            report, _ = fuzzer.communicate(timeout=seconds + 120)
            assert fuzzer.returncode == 0, report
            assert "Skipped" not in report.partition("SUMMARY")[2].partition("Test Phases")[0], report
            reports.append(report)
    finally:
        for fuzzer in fuzzers:
            fuzzer.kill()
            fuzzer.wait()
    log = server.stderr()
    assert server.status("/health") == 200 and alive(engine), log
    assert "Traceback" not in log, log
    assert num_sequences(server) >= seconds // 2, "nearly all that was sent was refused"
    assert server.complete().status_code == 200
    wait_idle(server)
    return "\n".join(reports)


def _start(server: Server, folder: Path, *, seconds: int, schemathesis: str, seed: int) -> subprocess.Popen[str]:
    command = [schemathesis, "run", str(folder / "openapi.json"), "--url", server.url, "--checks", CHECKS]
    command += ["--max-time", str(seconds), "--request-timeout", str(_REQUEST_S), "--workers", "1"]
    command += ["--mode", "all", "--phases", "examples,coverage,fuzzing", "--seed", str(seed), "--continue-on-failure"]
    command += ["--suppress-health-check", "all", "--no-shrink", "--warnings", "off", "--no-color"]
    own = folder / f"fuzzer-{seed}"
    own.mkdir()
    return subprocess.Popen(command, cwd=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--schemathesis", default=find_schemathesis())
    parser.add_argument("--seed", type=int, default=1, help="of the first fuzzer; the next has the next number")
    parser.add_argument("--fuzzers", type=int, default=2, help="processes that ask at once")
    given = parser.parse_args()
    if given.schemathesis is None:
        parser.error("schemathesis is not installed; pip install schemathesis, or say where with --schemathesis")
    with tempfile.TemporaryDirectory() as name, fuzz_server(Path(name)) as server:
        before = rss_mib(server.process.pid), rss_mib(server.engine())
        seeds = list(range(given.seed, given.seed + given.fuzzers))
        report = fuzz(server, Path(name), seconds=given.seconds, schemathesis=given.schemathesis, seeds=seeds)
        after = rss_mib(server.process.pid), rss_mib(server.engine())
        print(report)
        print(f"{num_cases(report)} requests, {num_sequences(server):.0f} sequences generated")
        print(f"memory MiB, server and engine: {before} -> {after}; open files {num_files(server.process.pid)}")


def fuzz_server(folder: Path) -> Server:
    """A server of short sequences, ready."""
    return tiny_server(folder, "--max-model-len", "128", "--kv-cache-tokens", "8192", "--tool-parser", "hermes").ready()


def num_cases(reports: str) -> int:
    """Requests that the fuzzers say they sent."""
    return sum(int(number.replace(",", "")) for number in re.findall(r"(\d[\d,]*) generated", reports))


if __name__ == "__main__":
    main()
