"""Over HTTP, a pair of servers answers as one server does, and counts and traces what it handed over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.obs.chrome_trace import merge
from tests.server.harness import events_of
from tests.transfer.answers import comparable, whole
from tests.transfer.servers import (
    CHAT,
    COMPLETIONS,
    GIVE,
    EngineServer,
    Pair,
    proxied,
    role,
    servers,
)

pytestmark = pytest.mark.torch

MODES = ("push", "pull")
PROMPT = "It was the best of times, it was the worst of times, it was the age of wisdom"
NUM_BLOCKS = -(-len(PROMPT) // 16)
# Keys and values of 16 tokens, 2 layers and 2 heads of 16 numbers (tests/models/harness.TINY), in float32.
BLOCK_BYTES = 16 * 2 * 2 * 2 * 16 * 4
MESSAGES = [{"role": "user", "content": "What was it the best of, and the worst of?"}]
TEXT: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 12, "temperature": 1.0}
TALK: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 12, "temperature": 1.0}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (COMPLETIONS, {**TEXT, "temperature": 0, "ignore_eos": True}),
    "seeded": (COMPLETIONS, {**TEXT, "seed": 5}),
    "three": (COMPLETIONS, {**TEXT, "seed": 6, "n": 3}),
    "logprobs": (COMPLETIONS, {**TEXT, "seed": 7, "logprobs": 3}),
    "ids": (COMPLETIONS, {**TEXT, "prompt": list(range(40)), "seed": 8, "return_token_ids": True}),
    "chat": (CHAT, {**TALK, "seed": 9, "min_tokens": 3}),
    "chat three": (CHAT, {**TALK, "seed": 10, "n": 3, "logprobs": True, "top_logprobs": 2}),
    "chat regex": (CHAT, {**TALK, "seed": 11, "structured_outputs": {"regex": "[a-f]{3}-[0-9]{3}"}}),
    "one token": (COMPLETIONS, {**TEXT, "seed": 12, "max_tokens": 1}),
}


@pytest.fixture(scope="module")
def fleet(text_model: Path) -> Iterator[tuple[EngineServer, dict[str, Pair]]]:
    """A single server, and a pair that is asked in each mode. Prefix caches are off: usage has to be equal."""
    plain = ("--no-enable-prefix-caching",)
    commands = [(text_model, flags) for flags in (plain, role("prefill", *plain), role("decode", *plain))]
    with servers(*commands) as (single, *pair), ExitStack() as stack:
        yield single, {mode: stack.enter_context(proxied(mode, *pair)) for mode in MODES}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def single(fleet: Any) -> EngineServer:
    server: EngineServer = fleet[0]
    return server


@pytest.fixture
def pair(fleet: Any, mode: str) -> Pair:
    found: Pair = fleet[1][mode]
    return found


def streamed(http: httpx.Client, path: str, body: dict[str, Any]) -> tuple[dict[int, list[Any]], dict[str, Any]]:
    """What each choice brought, chunk by chunk, and the usage."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    answer = http.post(path, json=asked)
    assert answer.status_code == 200, answer.text
    events = [comparable(event) for event in events_of(answer.content)]
    choices: dict[int, list[Any]] = {}
    for event in events:
        for choice in event["choices"]:
            choices.setdefault(choice["index"], []).append(choice)
    return choices, events[-1]["usage"]


def joined(choices: dict[int, list[Any]]) -> dict[int, tuple[str, str]]:
    """Text and finish reason of each choice: chunks may hold more than a token."""
    found = {}
    for index, chunks in choices.items():
        pieces = [chunk["text"] if "text" in chunk else chunk["delta"].get("content") or "" for chunk in chunks]
        found[index] = ("".join(pieces), chunks[-1]["finish_reason"])
    return found


@pytest.mark.parametrize("name", BODIES)
def test_whole_answers(single: EngineServer, pair: Pair, name: str) -> None:
    path, body = BODIES[name]
    assert whole(pair.http, path, body) == whole(single.http, path, body)
    assert pair.decode.peer["num_fallbacks"] == 0


@pytest.mark.parametrize("name", BODIES)
def test_streams(single: EngineServer, pair: Pair, name: str) -> None:
    path, body = BODIES[name]
    (ours, our_usage), (theirs, their_usage) = (streamed(http, path, body) for http in (pair.http, single.http))
    assert joined(ours) == joined(theirs) and our_usage == their_usage
    assert pair.decode.peer["num_fallbacks"] == 0


def test_stop_strings(single: EngineServer, pair: Pair) -> None:
    """The stop string is what the single server's answer has in its middle, and its very first character."""
    path, body = BODIES["greedy"]
    text = whole(single.http, path, body)["choices"][0]["text"]
    for stop in (text[5:7], text[0]):
        asked = {**body, "stop": [stop]}
        theirs = whole(single.http, path, asked)
        assert theirs["choices"][0]["finish_reason"] == "stop"
        assert whole(pair.http, path, asked) == theirs
        assert joined(streamed(pair.http, path, asked)[0]) == {0: (theirs["choices"][0]["text"], "stop")}
    pair.idle()


def test_the_prefill_leg_answers_with_the_fields_of_vllm(pair: Pair) -> None:
    """Names from vLLM's NIXL connectors; the answer as it is makes the decode leg."""
    peer = pair.prefill.peer
    body = {**TEXT, "seed": 5}
    answer = pair.prefill.post({**body, "kv_transfer_params": GIVE}).json()
    ticket = answer["kv_transfer_params"]
    assert ticket["do_remote_prefill"] is True and ticket["do_remote_decode"] is False
    assert ticket["remote_engine_id"] == peer["engine_id"] and ticket["remote_request_id"]
    assert (ticket["remote_host"], ticket["remote_port"]) == (peer["host"], peer["port"])
    assert ticket["tp_size"] == 1 and ticket["remote_num_tokens"] == len(PROMPT)
    (blocks,) = ticket["remote_block_ids"]
    assert len(blocks) == -(-len(PROMPT) // 16)
    assert answer["usage"]["completion_tokens"] == 1
    assert pair.decode.post({**body, "kv_transfer_params": ticket}).status_code == 200
    pair.idle()


def test_prefill_first_then_decode_with_what_a_push_proxy_keeps(single: EngineServer, pair: Pair) -> None:
    """As vLLM's serial push: without block ids and transfer_id, P's request id in its place."""
    kept = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size")
    path, body = BODIES["seeded"]
    ticket = pair.prefill.post({**body, "kv_transfer_params": GIVE}, path).json()["kv_transfer_params"]
    params = {"do_remote_prefill": True, "do_remote_decode": False, **{name: ticket[name] for name in kept}}
    answer = pair.decode.post({**body, "kv_transfer_params": params}, path)
    assert answer.status_code == 200 and comparable(answer.json()) == whole(single.http, path, body)
    assert pair.decode.peer["num_fallbacks"] == 0
    pair.idle()


def test_metrics_count_hand_offs(pair: Pair) -> None:
    """The side that posts (P in push, D in pull) counts the transfer, the other none."""
    mover, other = (pair.prefill, pair.decode) if pair.mode == "push" else (pair.decode, pair.prefill)
    pair.idle()
    names = (
        "vllm:nixl_xfer_time_seconds_count",
        "vllm:nixl_bytes_transferred_count",
        "baton_handoff_exposed_seconds_count",
    )
    before = {name: mover.metric(name) for name in names}
    bytes_before, taken = mover.metric("vllm:nixl_bytes_transferred_sum"), "vllm:prompt_tokens_by_source_total"
    sources_before = pair.decode.metric(taken)
    others_before = other.metric("vllm:nixl_bytes_transferred_count")
    for _ in range(3):
        assert pair.ask(**TEXT, seed=1).status_code == 200
    pair.idle()
    assert {name: mover.metric(name) - count for name, count in before.items()} == dict.fromkeys(names, 3)
    assert mover.metric("vllm:nixl_bytes_transferred_sum") - bytes_before == 3 * NUM_BLOCKS * BLOCK_BYTES
    assert other.metric("vllm:nixl_bytes_transferred_count") == others_before
    assert pair.decode.metric(taken) - sources_before == 3 * len(PROMPT)
    for server in (pair.prefill, pair.decode):
        assert server.metric("baton_handoff_links") == 1
        assert server.metric("vllm:nixl_num_failed_transfers_total") == 0
        for gauge in ("waiting", "leased", "in_flight", "pinned_blocks", "quarantined"):
            assert server.metric(f"baton_handoff_{gauge}") == 0


def test_one_trace_over_both_engines(pair: Pair) -> None:
    assert pair.ask(**TEXT, seed=2).status_code == 200
    pair.idle()
    transfer_id = pair.transfer_ids[-1]
    documents = [server.http.get(f"/trace/{transfer_id}").json() for server in (pair.prefill, pair.decode)]
    both = merge(documents)
    assert both["otherData"] == documents[0]["otherData"] == documents[1]["otherData"]
    assert set(both["otherData"]) == {"trace_id", "transfer_id"} and both["otherData"]["transfer_id"] == transfer_id
    spans = {
        (event["args"].get("side"), event["name"]) if event["name"] == "request" else event["name"]: event
        for event in both["traceEvents"]
        if event["ph"] == "X"
    }
    start = {name: span["ts"] for name, span in spans.items()}
    end = {name: span["ts"] + span["dur"] for name, span in spans.items()}
    giver, taker = ("giver", "request"), ("taker", "request")
    assert {spans[giver]["pid"], spans[taker]["pid"]} == {pair.prefill.peer["engine_id"], pair.decode.peer["engine_id"]}
    assert start[giver] <= start["prefill"] < end["prefill"] <= end[giver]
    assert start[taker] <= start["transfer"] < end["transfer"] <= start["decode"] < end["decode"] <= end[taker]
    assert start["prefill"] <= start["wire"] <= end["wire"] <= end["transfer"]
    assert end["prefill"] <= end["transfer"]
    if pair.mode == "pull":
        assert end["prefill"] <= start["wire"] and end[giver] <= end[taker]
