"""Through the router, 2P2D answer as one server does: whole and streamed, in push, in pull and in auto."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.router.config import Mode, RouterConfig
from baton.router.worker import WorkerSpec
from tests.cluster.serving import until
from tests.router.routed import Routed, real_fleet, routed
from tests.server.harness import events_of
from tests.transfer.answers import comparable, whole
from tests.transfer.servers import CHAT, COMPLETIONS, EngineServer, role, servers

pytestmark = pytest.mark.torch

MODES = ("push", "pull", "auto")
SLOTS = 4
DIRECTION = {"push": "push", "pull": "pull", "auto": "push"}  # with room everywhere
PROMPT = "It was the best of times, it was the worst of times, it was the age of wisdom"
MESSAGES = [{"role": "user", "content": "What was it the best of, and the worst of?"}]
TEXT: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 12, "temperature": 1.0}
TALK: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 12, "temperature": 1.0}
# A seed whose first token is a character of its own, so that it is relayed; the byte vocabulary has many halves.
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (COMPLETIONS, {**TEXT, "temperature": 0, "ignore_eos": True}),
    "seeded": (COMPLETIONS, {**TEXT, "seed": 5}),
    "penalties": (COMPLETIONS, {**TEXT, "seed": 5, "presence_penalty": 1.5, "repetition_penalty": 1.2}),
    "min tokens": (COMPLETIONS, {**TEXT, "seed": 5, "min_tokens": 4, "logit_bias": {"256": 5}}),
    "three": (COMPLETIONS, {**TEXT, "seed": 6, "n": 3}),
    "three logprobs": (COMPLETIONS, {**TEXT, "seed": 6, "n": 3, "logprobs": 2}),
    "logprobs": (COMPLETIONS, {**TEXT, "seed": 7, "logprobs": 3}),
    "ids": (COMPLETIONS, {**TEXT, "prompt": list(range(40)), "seed": 8, "return_token_ids": True}),
    "chat": (CHAT, {**TALK, "seed": 9, "min_tokens": 3}),
    "chat three": (CHAT, {**TALK, "seed": 10, "n": 3, "logprobs": True, "top_logprobs": 2}),
    "chat logprobs": (CHAT, {**TALK, "seed": 12, "logprobs": True, "top_logprobs": 2}),
    "chat regex": (CHAT, {**TALK, "seed": 11, "structured_outputs": {"regex": "[a-f]{3}-[0-9]{3}"}}),
    "one token": (COMPLETIONS, {**TEXT, "seed": 12, "max_tokens": 1}),
    "two prompts": (COMPLETIONS, {**TEXT, "prompt": [PROMPT, "It was"], "seed": 13}),
    "best of": (COMPLETIONS, {**TEXT, "seed": 14, "best_of": 3}),
}
WHOLE_ONLY: dict[str, tuple[str, dict[str, Any]]] = {
    "echo": (COMPLETIONS, {**TEXT, "seed": 15, "echo": True}),
    "echo logprobs": (COMPLETIONS, {**TEXT, "seed": 15, "echo": True, "logprobs": 2}),
    "echo ids logprobs": (
        COMPLETIONS,
        {**TEXT, "prompt": list(range(40)), "seed": 15, "echo": True, "logprobs": 2, "n": 2},
    ),
    "echo ids": (COMPLETIONS, {**TEXT, "prompt": list(range(40)), "seed": 15, "echo": True}),
    "score": (COMPLETIONS, {**TEXT, "max_tokens": 0, "echo": True, "logprobs": 1}),
    "prompt logprobs": (COMPLETIONS, {**TEXT, "seed": 16, "prompt_logprobs": 2, "n": 2}),
    "chat prompt logprobs": (CHAT, {**TALK, "seed": 16, "prompt_logprobs": 2}),
}


@dataclass
class Fleet:
    """A single server, two of each role, and for each mode a router in front of those four."""

    single: EngineServer
    prefill: list[EngineServer]
    decode: list[EngineServer]
    routers: dict[str, Routed]

    @property
    def ends(self) -> list[EngineServer]:
        return [*self.prefill, *self.decode]


@pytest.fixture(scope="module")
def fleet(text_model: Path) -> Iterator[Fleet]:
    """Prefix caches are off: usage has to be equal."""
    plain = ("--no-enable-prefix-caching", "--max-num-seqs", str(SLOTS))
    roles = [role(name, *plain) for name in ("prefill", "prefill", "decode", "decode")]
    with (
        servers((text_model, plain), *((text_model, flags) for flags in roles)) as (single, *four),
        ExitStack() as stack,
    ):
        make = real_fleet([WorkerSpec(url=server.url) for server in four])
        routers = {mode: stack.enter_context(routed(make, RouterConfig(port=0, mode=Mode(mode)))) for mode in MODES}
        yield Fleet(single, four[:2], four[2:], routers)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def router(fleet: Fleet, mode: str) -> Iterator[Routed]:
    """Nothing of a test may be left on either side."""
    yield fleet.routers[mode]
    for server in fleet.ends:
        server.idle()


@pytest.fixture
def single(fleet: Fleet) -> EngineServer:
    return fleet.single


@dataclass
class Streamed:
    """A stream, put together by choice: chunks may hold more than a token."""

    events: list[dict[str, Any]]

    @property
    def usage(self) -> Any:
        return self.events[-1].get("usage")

    def choices(self) -> dict[int, dict[str, Any]]:
        """Text, roles, logprobs, ids and endings of each choice."""
        found: dict[int, dict[str, Any]] = {}
        for event in self.events:
            for choice in event["choices"]:
                _add(found.setdefault(choice["index"], {"text": "", "roles": 0, "entries": [], "ids": []}), choice)
        return found


def _add(found: dict[str, Any], choice: dict[str, Any]) -> None:
    delta = choice.get("delta", {})
    found["text"] += choice.get("text") or delta.get("content") or ""
    found["roles"] += "role" in delta
    found["ids"] += choice.get("token_ids") or []
    logprobs = choice.get("logprobs") or {}
    if "content" in logprobs:
        found["entries"] += logprobs["content"]
    elif logprobs:
        names = ("text_offset", "token_logprobs", "tokens", "top_logprobs")
        found["entries"] += zip(*(logprobs[name] for name in names), strict=True)
    for name in ("finish_reason", "stop_reason"):
        if choice.get(name) is not None:
            assert name not in found
            found[name] = choice[name]
    if "prompt_token_ids" in choice:
        assert "prompt" not in found
        found["prompt"] = choice["prompt_token_ids"]


def streamed(http: httpx.Client, path: str, body: dict[str, Any], **options: Any) -> Streamed:
    asked = {**body, "stream": True, "stream_options": {"include_usage": True, **options}}
    answer = http.post(path, json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = events_of(answer.content)
    assert len({event["id"] for event in events}) == len({event["created"] for event in events}) == 1
    return Streamed([comparable(event) for event in events])


@pytest.mark.parametrize("name", [*BODIES, *WHOLE_ONLY])
def test_whole_answers(single: EngineServer, router: Routed, name: str) -> None:
    path, body = (BODIES | WHOLE_ONLY)[name]
    assert whole(router.http, path, body) == whole(single.http, path, body)
    assert [attempt.outcome for attempt in router.last.attempts] == ["done"]


@pytest.mark.parametrize("name", BODIES)
def test_streams(single: EngineServer, router: Routed, mode: str, name: str) -> None:
    path, body = BODIES[name]
    if name == "best of":
        body = {**body, "best_of": 1}
    ours, theirs = (streamed(http, path, body) for http in (router.http, single.http))
    assert ours.choices() == theirs.choices() and ours.usage == theirs.usage
    (attempt,) = router.last.attempts
    split = name not in ("one token", "two prompts")
    assert (attempt.outcome, attempt.mode) == ("done", DIRECTION[mode] if split else "single")
    assert not split or router.last.num_new_tokens == 12 or theirs.usage["completion_tokens"] < 12 or "n" in body


def test_an_echo_is_streamed_by_one_worker(single: EngineServer, router: Routed) -> None:
    path, body = WHOLE_ONLY["echo logprobs"]
    ours, theirs = (streamed(http, path, body) for http in (router.http, single.http))
    assert ours.choices() == theirs.choices() and ours.usage == theirs.usage
    assert router.last.attempts[0].mode == "single"


def test_usage_in_every_chunk(single: EngineServer, router: Routed) -> None:
    path, body = BODIES["logprobs"]
    ours, theirs = (streamed(http, path, body, continuous_usage_stats=True) for http in (router.http, single.http))
    assert ours.choices() == theirs.choices() and ours.usage == theirs.usage
    assert all(event["usage"]["prompt_tokens"] == len(PROMPT) for event in ours.events)
    assert not router.last.relayed


def test_first_tokens_are_relayed_unless_they_are_halves(router: Routed) -> None:
    """Of 12 seeds, some begin with a byte below 128. Then the first chunk is the prefill server's."""
    relayed = 0
    for seed in range(12):
        ours = streamed(router.http, COMPLETIONS, {**TEXT, "seed": seed, "logprobs": 0})
        first = ours.events[0]["choices"][0]
        if router.last.relayed:
            relayed += 1
            assert len(first["text"]) <= 1 and len(first["logprobs"]["tokens"]) == 1
            assert router.last.first_token_s < router.last.attempts[0].landed_s
        elif "\ufffd" not in first["text"]:
            assert not first["text"] or first["finish_reason"]
    assert relayed


def test_stop_strings(single: EngineServer, router: Routed) -> None:
    """The stop string is what the single server's answer has in its middle, and its very first character."""
    path, body = BODIES["greedy"]
    text = whole(single.http, path, body)["choices"][0]["text"]
    for stop in (text[5:7], text[0], text[0:2], text[0:3] + "?"):
        asked = {**body, "stop": [stop]}
        assert whole(router.http, path, asked) == whole(single.http, path, asked)
        ours, theirs = (streamed(http, path, asked) for http in (router.http, single.http))
        assert ours.choices() == theirs.choices() and ours.usage == theirs.usage


def test_refusals_are_the_workers(single: EngineServer, router: Routed) -> None:
    odd = [{"temperature": 9}, {"n": "x"}, {"max_tokens": 100_000}, {"stop": list("abcde")}, {"prompt": ""}]
    for fields in odd:
        for stream in (False, True):
            asked = {**TEXT, **fields, "stream": stream}
            ours, theirs = (http.post(COMPLETIONS, json=asked) for http in (router.http, single.http))
            assert (ours.status_code, ours.json()) == (theirs.status_code, theirs.json()), asked
            assert ours.status_code == 400
    for content in (b"", b"{", b"[]", b'{"prompt": "a", "x": NaN, "temperature": NaN}'):
        ours, theirs = (http.post(COMPLETIONS, content=content) for http in (router.http, single.http))
        assert (ours.status_code, ours.json()) == (theirs.status_code, theirs.json()), content


def test_what_a_client_says_of_transfers_is_not_passed_on(router: Routed) -> None:
    evil = {"do_remote_prefill": True, "remote_host": "evil", "remote_port": 1, "transfer_id": "x"}
    plain = b'{"prompt": "It was", "max_tokens": 2, "user": NaN, "kv_transfer_params": {"do_remote_decode": true}}'
    for answer in (
        router.http.post(COMPLETIONS, json={**TEXT, "kv_transfer_params": evil}),
        router.http.post(COMPLETIONS, json={**TEXT, "max_tokens": 1, "kv_transfer_params": evil}),
        router.http.post(COMPLETIONS, content=plain),
    ):
        assert answer.status_code == 200, answer.text
        assert "kv_transfer_params" not in answer.json()


def test_a_client_that_leaves_in_decode(fleet: Fleet, router: Routed) -> None:
    """Both engines are free within two seconds."""
    asked = {**TEXT, "max_tokens": 170, "seed": 5, "ignore_eos": True, "stream": True}
    with router.http.stream("POST", COMPLETIONS, json=asked) as answer:
        pieces = answer.iter_raw()
        for _ in range(3):
            next(pieces)
    for server in fleet.ends:
        server.idle(2.0)
    assert router.last.status == 499 and router.last.num_new_tokens < 170


def test_a_client_that_leaves_in_the_hand_over(fleet: Fleet, router: Routed) -> None:
    """The decode engines are stopped, so nobody comes for the prompt: its prefill engine need not wait for a lease."""

    def prefilled() -> bool:
        live = list(router.journal.live.values())
        return any(record.attempts and record.attempts[0].prefilled_s for record in live)

    async def leave() -> None:
        async with httpx.AsyncClient(base_url=router.url, timeout=60) as http:
            asking = asyncio.create_task(http.post(COMPLETIONS, json={**TEXT, "seed": 5}))
            await asyncio.to_thread(until, prefilled)
            assert not asking.done()
            asking.cancel()
            await asyncio.wait({asking})

    for server in fleet.decode:
        server.signal(signal.SIGSTOP)
    try:
        asyncio.run(leave())
        for server in fleet.prefill:
            server.idle(2.0)
    finally:
        for server in fleet.decode:
            server.signal(signal.SIGCONT)
    for server in fleet.decode:
        server.idle(2.0)


def test_a_crowd(fleet: Fleet, single: EngineServer, router: Routed, mode: str) -> None:
    """More requests than the decode servers have room for: in auto the first are pushed, then some are pulled."""
    asked = [{**TEXT, "seed": seed, "ignore_eos": True, "max_tokens": 60} for seed in range(6 * SLOTS)]
    before = len(router.journal.ended)
    with ThreadPoolExecutor(len(asked)) as threads:
        ours = list(threads.map(lambda body: whole(router.http, COMPLETIONS, body), asked))
    assert ours == [whole(single.http, COMPLETIONS, body) for body in asked]
    until(lambda: not router.journal.live)
    attempts = [attempt for record in list(router.journal.ended)[before:] for attempt in record.attempts]
    assert {attempt.outcome for attempt in attempts} == {"done"}
    assert {attempt.mode for attempt in attempts} == ({"push", "pull"} if mode == "auto" else {mode})
    for ends, chosen in ((fleet.prefill, "prefill"), (fleet.decode, "decode")):
        assert {getattr(attempt, chosen) for attempt in attempts} == {server.url for server in ends}


def test_what_needs_any_worker(single: EngineServer, router: Routed) -> None:
    ours, theirs = (http.get("/v1/models").json() for http in (router.http, single.http))
    assert [model["id"] for model in ours["data"]] == [model["id"] for model in theirs["data"]]
    name = ours["data"][0]["id"]
    assert router.http.get(f"/v1/models/{name}").json()["id"] == name
    assert router.http.get("/v1/models/none").status_code == 404
    for path, body in (("/tokenize", {"prompt": PROMPT}), ("/detokenize", {"tokens": [1, 2, 3]})):
        assert router.http.post(path, json=body).json() == single.http.post(path, json=body).json()
    assert router.http.post("/tokenize", json={"prompt": 3}).status_code == 400
    for path in ("/health", "/ready", "/live", "/ping", "/version"):
        assert router.http.get(path).status_code == 200
    assert router.http.get(COMPLETIONS).status_code == 405 and router.http.get("/nowhere").status_code == 404
    assert router.http.post(COMPLETIONS, json={**TEXT, "model": "none"}).status_code == 404
