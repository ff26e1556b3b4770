"""The command line: what it measures, and what it says of options that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from baton.cli.bench import bench
from baton.core.errors import UserError
from tests.bench.conftest import StartStub


def call(*arguments: str) -> str:
    """What is printed.

    Raises:
        UserError: as the command does.
    """
    done = CliRunner().invoke(bench, list(arguments))
    if isinstance(done.exception, UserError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def lines(path: Path, *values: Any) -> str:
    path.write_text("\n".join(map(json.dumps, values)))
    return str(path)


def test_a_run_of_random_tokens(start_stub: StartStub, tmp_path: Path) -> None:
    output = tmp_path / "deep" / "r.json"
    options = [
        "--rate",
        "50",
        "--requests",
        "5",
        "--input-tokens",
        "20",
        "--output-tokens",
        "3",
        "--range-ratio",
        "0.5",
    ]
    more = ["--prefix-tokens", "8", "--goodput", "ttft:10000", "--metadata", "mode=push", "--metadata", "iter=2"]
    said = call("run", start_stub(), *options, *more, "--output", str(output))
    assert "5 completed, 0 failed" in said
    assert "goodput" in said
    found = json.loads(output.read_text())
    assert (found["mode"], found["iter"], found["request_rate"]) == ("push", 2, 50.0)
    assert all(8 + 10 <= length <= 8 + 30 for length in found["input_lens"])
    assert found["workload"]["data"]["prefix_tokens"] == 8
    assert found["slo_ms"] == {"ttft": 10000.0}


def test_a_trace_decides_times_and_lengths(start_stub: StartStub, tmp_path: Path) -> None:
    asked = [{"time_s": 100 + 0.2 * n, "input_tokens": 5 + n, "output_tokens": 1 + n} for n in range(4)]
    output = tmp_path / "r.json"
    call("run", start_stub(), "--trace", lines(tmp_path / "t.jsonl", *asked), "--output", str(output))
    found = json.loads(output.read_text())
    assert (found["input_lens"], found["output_lens"]) == ([5, 6, 7, 8], [1, 2, 3, 4])
    due_s = [sent - late for sent, late in zip(found["start_times"], found["queue_times"], strict=True)]
    assert due_s == pytest.approx([0, 0.2, 0.4, 0.6])


def test_chats_of_ones_own_and_from_sharegpt(start_stub: StartStub, tmp_path: Path) -> None:
    url, output = start_stub(), tmp_path / "r.json"
    talk = {"messages": [{"role": "user", "content": "hello"}], "output_tokens": 4}
    own = lines(tmp_path / "p.jsonl", talk, {"prompt": "again", "output_tokens": 4})
    common = ["--concurrency", "2", "--requests", "6", "--endpoint", "chat", "--output", str(output)]
    call("run", url, "--prompts", own, *common)
    assert json.loads(output.read_text())["output_lens"] == [4] * 6
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "an answer of five words"}]
    call("run", url, "--sharegpt", lines(tmp_path / "s.jsonl", {"conversations": turns}), *common)
    found = json.loads(output.read_text())
    assert found["output_lens"] == [5] * 6  # counted by the server's /tokenize
    assert (found["endpoint_type"], found["max_concurrency"]) == ("openai-chat", 2)


def test_a_sweep_and_what_is_made_of_it(start_stub: StartStub, tmp_path: Path) -> None:
    folder, slow = str(tmp_path / "sweep"), start_stub("--ttft-ms", "60")
    servers = ["--server", f"push={start_stub('--ttft-ms', '10')}", "--server", f"pull={slow}"]
    sizes = ["--input-tokens", "8,16", "--output-tokens", "2", "--iterations", "1", "--requests", "4", "--warm-up", "0"]
    assert "4 runs made" in call("sweep", "--results-dir", folder, *servers, "--qps", "100", *sizes)
    said = call("compare", f"{folder}/push", f"{folder}/pull")
    assert "better" in said
    call("plot", "--results-dir", folder)
    assert (tmp_path / "sweep" / "ttft_out2.html").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "http://x", "--requests", "1"], "--concurrency"),
        (["run", "http://x", "--ramp-to", "5"], "--ramp-to needs --rate"),
        (["run", "http://x", "--rate", "1", "--token-ids", "5"], "LOW:HIGH"),
        (["run", "http://x", "--rate", "1", "--extra-body", "[1]"], "JSON object"),
        (["run", "http://x", "--rate", "1", "--metadata", "x"], "KEY=VALUE"),
        (["run", "http://x", "--rate", "1", "--goodput", "x"], "NAME:MILLISECONDS"),
        (["run", "http://x", "--rate", "1", "--prompts", "a", "--trace", "b"], "one of --prompts"),
        (["run", "http://127.0.0.1:9", "--rate", "1"], "127.0.0.1:9"),
        (["sweep", "--results-dir", "x"], "either --up MODEL, or --server"),
        (["sweep", "--results-dir", "x", "--server", "nope"], "MODE=URL"),
        (["sweep", "--results-dir", "x", "--server", "a=http://b", "--qps", "x"], "list such as 1,2,4"),
        (["profile"], "URL of a router"),
        (["profile", "http://x", "--pull"], "a router has its own --mode"),
        (["accuracy", "http://x", "--shots", "9"], "only 8 examples"),
        (["compare", "missing", "missing"], "no result files"),
    ],
)
def test_options_that_cannot_be(arguments: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words.replace("[", r"\[")):
        call(*arguments)
