"""Serves a model by `baton up` in push and in pull mode, asks each fleet one question, shows what the hand-off cost.

python scripts/demo_client.py MODEL [QUESTION]. Standard library only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MODES = ("push", "pull")
MAX_TOKENS = 60
CHUNK_TOKENS = 128  # of prefill, so that a prompt of some hundred tokens has several and the first blocks leave early
MAX_MODEL_LEN = 2048
TIMEOUT_S = 120
PASSAGE = """\
In a relay race four runners of one team share the distance, and each must hand a short hollow stick, the baton, to
the next. The change has to happen inside a zone of thirty metres. A team that leaves the zone, or that drops the
baton and cannot pick it up, has lost. Since every runner is fast, most races are decided in these zones: the baton,
and not the runner, must lose no speed. In a slow change the receiver stands still, looks back, waits until the
baton is in his hand, and only then begins to run. Everything that he waits for is added to the time of the team. In
a fast change the receiver knows where the giver will be. He begins to run before the giver arrives, with his hand
open behind him, and does not look back. When both run at the same speed the giver lays the baton into the open
hand. Nobody waits, and the stick crosses the zone as fast as it crossed the rest of the track. This needs trust and
much training, because both must agree, long before the change, on the place, the hand and the moment. Coaches
measure the quality of a change by a simple difference: the time of the baton through the zone, compared with the
time that a single runner would have needed for the same metres. A difference of zero means that the change was
free. Good teams come close to it. Teams of strong runners who train the change too little have lost to teams of
weaker runners who trained it well, and this is why the order of the runners, too, is chosen with care: the best
starter runs first, those who give and take well run in the middle, and the one who can hold a lead under pressure
runs last.
"""
QUESTION = f"{PASSAGE}\nWhat is this text about?"


def main() -> None:
    """Push, then pull, then both in one table."""
    model, *given = sys.argv[1:]
    question = given[0] if given else QUESTION
    print(f"> {question if given else '[a text about relay races] What is this text about?'}")
    found = {}
    for mode in MODES:
        with fleet(model, mode) as url:
            found[mode] = asked(url, mode, question)
    show(found)


@contextmanager
def fleet(model: str, mode: str) -> Iterator[str]:
    """One prefill and one decode engine and a router; the router's URL."""
    command = [sys.executable, "-m", "baton", "up", model, "--mode", mode, "--host", "127.0.0.1", "--port", "0"]
    command += ["--device", "cpu", "--max-model-len", str(MAX_MODEL_LEN)]
    command += ["--max-num-batched-tokens", str(CHUNK_TOKENS)]
    print(f"\n--- {mode} ---", flush=True)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith("Baton is ready at "):
                yield line.split()[-1]
                break
        else:
            sys.exit("the fleet did not start")
    finally:
        process.terminate()
        process.wait()


def asked(url: str, mode: str, question: str) -> dict[str, Any]:
    """Ask, print the answer as it comes, and return the figures."""
    answer(url, "Hello", max_tokens=2, shown=False)  # the engines meet: a connection is made once
    figures = answer(url, question, max_tokens=MAX_TOKENS, shown=True)
    figures |= handoff(url)
    print(
        f"\n[{mode}: TTFT {figures['ttft_ms']:.0f} ms, {figures['tokens_per_s']:.1f} tokens/s after the first; "
        f"{figures['bytes']} bytes in {figures['descriptors']} descriptors, "
        f"{figures['early']:.0%} sent before prefill ended, {figures['exposed_ms']:.1f} ms of it exposed]",
        flush=True,
    )
    return figures


def answer(url: str, question: str, *, max_tokens: int, shown: bool) -> dict[str, Any]:
    """One streamed chat answer: its text, prompt tokens, TTFT, rate."""
    body = {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    started_s, times_s, texts, usage = time.perf_counter(), [], [], {}
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        for event in events(response):
            if "error" in event:
                sys.exit(f"the fleet answered: {event['error']['message']}")
            usage = event.get("usage") or usage
            text = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            if text:
                times_s.append(time.perf_counter())
                texts.append(text)
                print(text if shown else "", end="", flush=True)
    num_tokens = usage["completion_tokens"]
    return {
        "text": "".join(texts),
        "prompt_tokens": usage["prompt_tokens"],
        "ttft_ms": (times_s[0] - started_s) * 1e3,
        "tokens_per_s": (num_tokens - 1) / max(times_s[-1] - times_s[0], 1e-9),
    }


def events(response: Any) -> Iterator[Any]:
    """Of a stream of server-sent events."""
    for line in response:
        if line.startswith(b"data: {"):
            yield json.loads(line[len(b"data: ") :])


def handoff(url: str) -> dict[str, Any]:
    """What the hand-off of the latest request cost, as the engine that moved the bytes has counted it."""
    (latest,) = get(f"{url}/fleet?requests=1")["requests"]
    transfer_id = latest["attempts"][-1]["transfer_id"]
    for event in get(f"{url}/trace/{transfer_id}")["traceEvents"]:
        if event["name"] == "wire":
            facts = event["args"]
            return {**facts, "early": facts["early_bytes"] / facts["bytes"] if facts["bytes"] else 0.0}
    sys.exit(f"no engine knows of a hand-off {transfer_id!r}: {latest}")


def get(url: str) -> Any:
    """JSON of a GET."""
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        return json.load(response)


def show(found: dict[str, dict[str, Any]]) -> None:
    """Both modes, side by side."""
    rows = {
        "prompt tokens": lambda f: f"{f['prompt_tokens']}",
        "TTFT": lambda f: f"{f['ttft_ms']:.0f} ms",
        "tokens/s after the first": lambda f: f"{f['tokens_per_s']:.1f}",
        "hand-off bytes": lambda f: f"{f['bytes']}",
        "descriptors": lambda f: f"{f['descriptors']}",
        "sent before prefill ended": lambda f: f"{f['early']:.0%}",
        "exposed hand-off time": lambda f: f"{f['exposed_ms']:.1f} ms",
    }
    print(f"\n{'':<26}" + "".join(f"{mode:>16}" for mode in found))
    for name, said in rows.items():
        print(f"{name:<26}" + "".join(f"{said(figures):>16}" for figures in found.values()))
    if len({figures["text"] for figures in found.values()}) > 1:
        sys.exit("the two answers differ")


if __name__ == "__main__":
    main()
