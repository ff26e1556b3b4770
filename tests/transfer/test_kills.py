"""SIGKILL and SIGSTOP of either engine of a pair, in every state of a hand-off: the survivor answers with the right
tokens or names what happened, frees its blocks, and the peer is used again once it is back.

One prefill server (P) gives to two decode servers: one recomputes what fails, one fails it. Prefix caches are off, so
that a request without a hand-off, asked afterwards, is the oracle.
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.serving import until
from tests.transfer.servers import EngineServer, Pair, free_port, proxied, role, servers

pytestmark = pytest.mark.torch

LEASE_S = 6.0  # more than the 5 s after which a silent peer is lost: on a slow machine no lease ends before that
STOPPED_S = 8.0  # more than both
SLOTS = 6
RESERVED = SLOTS - 1
CROWD = 16
CHUNK = 8  # tokens of a prefill step: a prompt of 200 takes 25
FLAGS = (
    *("--handoff-lease-s", str(LEASE_S), "--handoff-timeout-s", "20", "--no-enable-prefix-caching"),
    *("--max-num-seqs", str(SLOTS), "--max-num-batched-tokens", str(CHUNK), "--kv-cache-tokens", "8192"),
)


@pytest.fixture(scope="module", params=["push", "pull"])
def trio(request: pytest.FixtureRequest, text_model: Path) -> Iterator[Pair]:
    mode = request.param
    fixed = ("--side-channel-port", str(free_port()))
    commands = (
        (text_model, role("prefill", *FLAGS, *fixed)),
        (text_model, role("decode", *FLAGS, "--handoff-policy", "recompute")),
        (text_model, role("decode", *FLAGS, "--handoff-policy", "fail")),
    )
    with servers(*commands) as (prefill, *takers), proxied(mode, prefill, *takers) as pair:
        yield pair


_RNG = random.Random(1)


def body(num_prompt: int, num_output: int = 6) -> dict[str, Any]:
    """A prompt that nobody has seen."""
    prompt = [_RNG.randrange(256) for _ in range(num_prompt)]
    return {"prompt": prompt, "max_tokens": num_output, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


_NUMBERS = iter(range(10**6))


def fresh() -> str:
    """A transfer_id."""
    return f"transfer-{next(_NUMBERS)}"


def tokens_of(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


@dataclass
class Stream:
    """A decode leg that is read as it comes. first: set with the first token."""

    body: dict[str, Any]
    first: threading.Event = field(default_factory=threading.Event)
    tokens: list[int] = field(default_factory=list)
    error: str | None = None
    last_s: float = 0.0

    def read(self, server: EngineServer, source: dict[str, Any]) -> None:
        asked = {**self.body, "stream": True, "kv_transfer_params": source}
        with server.http.stream("POST", "/v1/completions", json=asked) as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    self.error = event["error"]["message"]
                elif event["choices"]:
                    self.tokens += event["choices"][0]["token_ids"]
                    self.last_s = time.monotonic()
                    self.first.set()


@dataclass
class Leg:
    """A decode leg on the way."""

    body: dict[str, Any]
    answer: Future[httpx.Response]


@dataclass
class States:
    """One taker with requests in every state that can be held.

    reserved: blocks are reserved, P does not know the prefill. queued: no slot is free. leased: P has prefilled, nobody
    has come yet. decoding: landed. All but the last stay as they are for a lease; so `decode` comes last.
    """

    pair: Pair
    taker: EngineServer
    reserved: list[Leg] = field(default_factory=list)
    leased: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    queued: list[Leg] = field(default_factory=list)
    decoding: Stream = field(default_factory=lambda: Stream(body(10, 240)))
    decoding_id: str = field(default_factory=fresh)
    reading: Future[None] | None = None

    def leg(self, source: dict[str, Any], asked: dict[str, Any]) -> Leg:
        return Leg(asked, self.pair.take(source, self.taker, **asked))

    def reserve(self) -> None:
        """Every slot; the last is for `decode`."""
        for _ in range(RESERVED):
            self.reserved.append(self.leg(self.pair.source(fresh()), body(40)))
        self.reading = self.pair.run(self.decoding.read, self.taker, self.pair.source(self.decoding_id))

    def lease(self) -> None:
        asked = body(40)
        ticket = self.pair.give(fresh(), **asked).result().json()["kv_transfer_params"]
        self.leased.append((asked, ticket))

    def queue(self) -> None:
        until(lambda: self.taker.peer["num_waiting"] == SLOTS)
        self.queued.append(self.leg(self.pair.source(fresh()), body(40)))
        until(lambda: self.taker.stats()["waiting"] == 1)

    def decode(self) -> None:
        self.pair.give(self.decoding_id, **self.decoding.body).result()
        assert self.decoding.first.wait(20), self.taker.stderr()

    def fetch_leased(self) -> None:
        """The decode legs of what P has prefilled."""
        for asked, ticket in self.leased:
            self.queued.append(self.leg(ticket, asked))

    def check(self, happened_s: float, words: tuple[str, ...]) -> None:
        """What became of all: the right tokens, or, where that is the policy, a 503 with one of these words."""
        assert self.reading is not None
        self.reading.result(30)
        assert self.decoding.error is None and self.decoding.last_s > happened_s, "it was to decode while it happened"
        assert self.decoding.tokens == tokens_of(self.taker.post(self.decoding.body))
        recomputes = self.taker is self.pair.takers[0]
        for leg in (*self.reserved, *self.queued):
            answer = leg.answer.result(30)
            if recomputes or answer.status_code == 200:
                assert tokens_of(answer) == tokens_of(self.taker.post(leg.body))
            if not recomputes:
                check_named(answer, words)


def check_named(answer: httpx.Response, words: tuple[str, ...]) -> None:
    assert answer.status_code == 503 and answer.headers["retry-after"], answer.text
    message = answer.json()["error"]["message"]
    assert any(word in message for word in words), message


def every_state(pair: Pair, *takers: EngineServer) -> list[States]:
    """These takers, all states at once."""
    found = [States(pair, taker) for taker in takers]
    for step in (States.reserve, States.lease, States.queue):
        for states in found:
            step(states)
    until(lambda: pair.prefill.peer["num_unmatched"] == len(takers) * SLOTS)
    for states in found:
        states.decode()
    return found


def work_again(pair: Pair) -> None:
    """A hand-off to each taker, with no manual act before it."""
    for taker in pair.takers:
        fallbacks, transfer_id, asked = taker.peer["num_fallbacks"], fresh(), body(40)
        taken = pair.take(pair.source(transfer_id), taker, **asked)
        pair.give(transfer_id, **asked)
        assert tokens_of(taken.result(30)) == tokens_of(taker.post(asked))
        assert taker.peer["num_fallbacks"] == fallbacks
    pair.idle()


def crowd(pair: Pair, takers: tuple[EngineServer, ...]) -> list[tuple[EngineServer, Leg, Future[httpx.Response]]]:
    """Many hand-offs at once, both legs: queued, prefilling, posting, landed, decoding."""
    legs, source = [], pair.source("")
    for number in range(CROWD):
        taker, transfer_id, asked = takers[number % len(takers)], fresh(), body(200, 20)
        leg = Leg(asked, pair.take({**source, "transfer_id": transfer_id}, taker, **asked))
        legs.append((taker, leg, pair.give(transfer_id, **asked)))
    return legs


def logged(server: EngineServer, *words: str) -> bool:
    """Whether one line of its log has all of these."""
    return any(all(word in line for word in words) for line in server.stderr().splitlines())


def test_the_giver_is_killed_in_every_state(trio: Pair) -> None:
    """Reserved without a prefill, queued, prefilled and leased, landed and decoding."""
    old = trio.prefill.peer["engine_id"]
    states = every_state(trio, *trio.takers)
    killed_s = time.monotonic()
    trio.prefill.kill()
    for each in states:
        each.fetch_leased()
    for each in states:
        each.check(killed_s, ("was lost", "is no longer at", "is not reachable"))
    trio.prefill.back(old)
    trio.idle(15)
    for taker in trio.takers:
        assert logged(taker, old, "lost giver") or logged(taker, old, "has ended")
    work_again(trio)


def test_the_giver_is_killed_in_a_crowd(trio: Pair) -> None:
    """Prefills run in small chunks, some transfers are posted, some have landed."""
    old = trio.prefill.peer["engine_id"]
    legs = crowd(trio, trio.takers)
    until(lambda: any(leg.answer.done() for _, leg, _ in legs) and trio.prefill.stats()["running"], 30)
    trio.prefill.kill()
    for taker, leg, given in legs:
        answer = leg.answer.result(30)
        if taker is trio.takers[0] or answer.status_code == 200:
            assert tokens_of(answer) == tokens_of(taker.post(leg.body))
        else:
            check_named(answer, ("was lost", "is no longer at", "is not reachable"))
        assert given.result(30).status_code in (200, 503)
    assert not all(given.result().status_code == 200 for _, _, given in legs), "it was to run while it happened"
    trio.prefill.back(old)
    trio.idle(15)
    work_again(trio)


def test_the_giver_is_stopped_in_every_state(trio: Pair) -> None:
    """It is lost after 5 s; when it goes on, it gives up what it held, and the takers' pins are settled."""
    name = trio.prefill.peer["engine_id"]
    states = every_state(trio, *trio.takers)
    stopped_s = time.monotonic()
    trio.prefill.signal(signal.SIGSTOP)
    try:
        for each in states:
            each.fetch_leased()
        for each in states:
            each.check(stopped_s, ("was lost", "is not reachable"))
        if trio.mode == "push":
            assert all(taker.peer["num_quarantined"] >= RESERVED for taker in trio.takers)
        time.sleep(max(0.0, stopped_s + STOPPED_S - time.monotonic()))
    finally:
        trio.prefill.signal(signal.SIGCONT)
    trio.idle(15)
    for taker in trio.takers:
        assert logged(taker, "lost giver", name, "nothing heard")
    assert logged(trio.prefill, "lost taker", "paused")
    assert trio.prefill.peer["engine_id"] == name
    work_again(trio)


def test_the_taker_is_killed_in_every_state(trio: Pair) -> None:
    """Its clients are told, P frees what was reserved, leased, and on its way."""
    taker = trio.decode
    old = taker.peer["engine_id"]
    (states,) = every_state(trio, taker)
    legs = crowd(trio, (taker,))
    until(lambda: trio.prefill.stats()["running"])
    taker.kill()
    assert states.reading is not None
    states.reading.result(30)
    assert states.decoding.error is not None and "SIGKILL" in states.decoding.error
    for leg in (*states.reserved, *states.queued, *(leg for _, leg, _ in legs)):
        answer = leg.answer.result(30)
        assert answer.status_code == 503 and "SIGKILL" in answer.text, answer.text
    for _, _, given in legs:
        assert given.result(30).status_code in (200, 503)
    trio.prefill.idle(5 + LEASE_S + 5)
    assert logged(trio.prefill, old, "lost taker") or logged(trio.prefill, old, "has ended")
    taker.back(old)
    work_again(trio)


def test_the_taker_is_stopped_in_every_state(trio: Pair) -> None:
    """P gives it up after 5 s; when it goes on, it gives P up too, and nothing wrong is used."""
    taker, name = trio.decode, trio.decode.peer["engine_id"]
    (states,) = every_state(trio, taker)
    legs = crowd(trio, (taker,))
    until(lambda: trio.prefill.stats()["running"])
    stopped_s = time.monotonic()
    taker.signal(signal.SIGSTOP)
    try:
        for _, _, given in legs:
            assert given.result(30).status_code in (200, 503)
        trio.prefill.idle(5 + LEASE_S + 5)
        until(lambda: logged(trio.prefill, "lost taker", name, "nothing heard"))  # leases may end before the silence
        time.sleep(max(0.0, stopped_s + STOPPED_S - time.monotonic()))
    finally:
        taker.signal(signal.SIGCONT)
    states.fetch_leased()
    states.check(stopped_s, ())
    for _, leg, _ in legs:
        assert tokens_of(leg.answer.result(30)) == tokens_of(taker.post(leg.body))
    trio.idle(15)
    work_again(trio)
