"""The bench on real fleets of `baton up`: a tiny model of random weights, one prefill and one decode engine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.upping import Up
from tests.soak.tiny import tiny_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]
IDS = ("--token-ids", "10:60")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def up(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(model, tmp_path_factory.mktemp("logs"), "--mode", "push", "--max-num-batched-tokens", "256") as found:
        yield found.ready()


def bench(*arguments: str) -> str:
    command = [sys.executable, "-m", "baton", "bench", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_tells_what_its_handoffs_came_to(up: Up, tmp_path: Path) -> None:
    """10 prompts of 512 tokens, 512 bytes of KV a token (2 layers, 2 heads of 16, K and V, float32): 2.6 MB."""
    output = tmp_path / "r.json"
    load = ["--rate", "5", "--requests", "10", "--input-tokens", "512", "--output-tokens", "4"]
    bench("run", up.url, *load, *IDS, "--output", str(output))
    found = json.loads(output.read_text())
    assert (found["completed"], found["mode"], found["topology"], found["num_devices"]) == (10, "push", "1P1D", 2)
    assert found["output_lens"] == [4] * 10
    handoff: dict[str, Any] = found["handoff"]
    assert (handoff["transfers"], handoff["failures"], handoff["fallbacks"]) == (10, 0, 0)
    assert handoff["bytes"] == 10 * 512 * 512
    assert 0 < handoff["early_share"] < 1  # two chunks of 256 tokens: the first leaves before the second is done
    assert handoff["exposed_ms"]["p50"] > 0


def test_a_waterfall_through_the_router_and_over_the_pair(up: Up, tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    said = bench("profile", up.url, *IDS, "--output", str(trace))
    for word in (
        "router",
        "prefill",
        "chunk",
        "decode",
        "queue",
        "transfer",
        "wire",
        "descriptors",
        "first piece after",
    ):
        assert word in said
    assert json.loads(trace.read_text())["traceEvents"]
    rows = httpx.get(up.url + "/fleet", timeout=10).json()["workers"]
    urls = {row["role"]: row["url"] for row in rows}
    for pull in ((), ("--pull",)):
        before = {role: posted(url) for role, url in urls.items()}
        said = bench("profile", "--prefill", urls["prefill"], "--decode", urls["decode"], *IDS, *pull)
        for word in ("queue", "transfer", "wire", "first piece after"):
            assert word in said
        posts = {role for role, url in urls.items() if posted(url) > before[role]}
        assert posts == ({"decode"} if pull else {"prefill"})


def posted(url: str) -> int:
    """Transfers that an engine moved the bytes of."""
    count: int = httpx.get(url + "/stats", timeout=10).json()["handoff"]["num_transfers"]
    return count


def test_the_pair_answers_as_its_prefill_engine_does_alone(up: Up) -> None:
    rows = httpx.get(up.url + "/fleet", timeout=10).json()["workers"]
    alone = next(row["url"] for row in rows if row["role"] == "prefill")
    quiz = ["--questions", "8", "--shots", "2", "--max-tokens", "12"]
    said = bench("accuracy", up.url, *quiz, "--parity", alone)
    assert "8 of 8 answers are the same (token by token), 0 request errors" in said


def test_a_sweep_starts_and_ends_its_fleets(model: Path, tmp_path: Path) -> None:
    load = ["--qps", "8", "--input-tokens", "64", "--output-tokens", "4", "--requests", "6", "--iterations", "1"]
    flags = ["--device", "cpu", "--dtype", "float32", "--load-format", "dummy", "--max-model-len", "512"]
    said = bench("sweep", "--results-dir", str(tmp_path), "--up", str(model), *load, *IDS, "--", *flags)
    assert "2 runs made" in said
    for mode in ("push", "pull"):
        found = json.loads((tmp_path / f"{mode}_qps8_in64_out4_iter0.json").read_text())
        assert (found["mode"], found["completed"], found["handoff"]["transfers"]) == (mode, 6, 6)
        assert found["sweep"]["up_flags"] == flags
        assert (tmp_path / "fleets" / f"{mode}_iter0" / "router.log").exists()
    assert not running(str(tmp_path))


def running(word: str) -> list[str]:
    """Processes with this word in their command lines."""
    lines = [
        path.read_bytes().decode(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()
    ]
    return [line for line in lines if word in line and "pytest" not in line]
