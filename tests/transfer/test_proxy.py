"""The proxy of the tests, in front of two scripted engines: which legs it sends, and when it ends them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from baton.core.handoff import PeerAddress, Role, Ticket, TransferMode
from baton.core.request import FinishReason, Request, SequenceDelta
from baton.server.config import ServerConfig
from baton.wire.engine import FromEngine
from tests.server.harness import Server, events_of, serve
from tests.server.scripted import ScriptedEngine, engine_info, output, peer_info, tokens
from tests.transfer.proxy import Proxy

pytestmark = pytest.mark.slow

PATH = "/v1/completions"
PROMPT = [5] * 40
PUSH, PULL = TransferMode.PUSH, TransferMode.PULL
BODY = {"prompt": PROMPT, "max_tokens": 6, "min_tokens": 2, "n": 1, "kv_transfer_params": {"do_remote_decode": "?"}}


def give(request: Request) -> Iterable[FromEngine]:
    assert request.handoff is not None
    ticket = Ticket(transfer_id=request.handoff.transfer_id, num_tokens=40, block_ids=(1,))
    token = SequenceDelta(
        request_id=request.request_id, index=0, token_ids=(72,), finish_reason=FinishReason.LENGTH, ticket=ticket
    )
    return [output(token)]


def fail(request: Request) -> Iterable[FromEngine]:
    return [
        output(
            SequenceDelta(request_id=request.request_id, index=0, finish_reason=FinishReason.ERROR, error="no memory")
        )
    ]


def take(request: Request) -> Iterable[FromEngine]:
    return [output(tokens(request))]


def wait_for_ever(request: Request) -> Iterable[FromEngine]:
    return []


@contextmanager
def pair(
    mode: TransferMode, *, prefill: Any = give, decode: Any = take
) -> Iterator[tuple[Server, Server, Callable[[Callable[[Proxy], Awaitable[Any]]], Any]]]:
    """Prefill server, decode server, and a function that runs something with a proxy in front of both."""
    config = ServerConfig(served_model_names=("MODEL",))

    def engine(role: Role, script: Any) -> Callable[[], ScriptedEngine]:
        return lambda: ScriptedEngine(engine_info(peer_info(role)), script)

    with serve(engine(Role.PREFILL, prefill), config) as giver, serve(engine(Role.DECODE, decode), config) as taker:

        async def run(use: Callable[[Proxy], Awaitable[Any]]) -> Any:
            async with asyncio.timeout(60), Proxy(giver.url, taker.url, mode) as proxy:
                return await use(proxy)

        yield giver, taker, lambda use: asyncio.run(run(use))


async def post(proxy: Proxy, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=proxy.url, timeout=30) as http:
        return await http.post(PATH, json=body, headers={"x-request-id": "mine"})


@pytest.mark.parametrize("mode", [PUSH, PULL])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_both_legs_carry_one_transfer(mode: TransferMode, stream: bool) -> None:
    with pair(mode) as (giver, taker, run):
        asked = {**BODY, "stream": True, "stream_options": {"include_usage": True}} if stream else BODY
        made: list[str] = []

        async def twice(proxy: Proxy) -> list[httpx.Response]:
            answers = [await post(proxy, **asked) for _ in range(2)]
            made.extend(proxy.transfer_ids)
            return answers

        for answer in run(twice):
            assert answer.status_code == 200 and answer.headers["x-request-id"] == "mine", answer.text
            last = events_of(answer.content)[-1] if stream else answer.json()
            assert last["usage"]["completion_tokens"] == 6 and "kv_transfer_params" not in last
        gave, took = giver.engine.requests, taker.engine.requests
        assert len(set(made)) == 2
        assert [request.handoff.transfer_id for request in gave] == made
        assert [request.handoff.transfer_id for request in took] == made
        assert all((request.params.max_tokens, request.params.min_tokens) == (1, 0) for request in gave)
        assert all((request.params.max_tokens, request.params.min_tokens) == (6, 2) for request in took)
        source = PeerAddress(host="10.0.0.7", port=5600, engine_id="engine-prefill")
        assert all(request.handoff.source == source for request in took)


def test_push_sends_both_legs_before_either_answers() -> None:
    both = threading.Barrier(2, timeout=20)

    def meet(script: Any) -> Any:
        def met(request: Request) -> Iterable[FromEngine]:
            both.wait()
            return script(request)

        return met

    with pair(PUSH, prefill=meet(give), decode=meet(take)) as (_, _, run):
        assert run(lambda proxy: post(proxy, **BODY)).status_code == 200


@pytest.mark.parametrize("mode", [PUSH, PULL])
def test_a_failed_prefill_is_the_answer(mode: TransferMode) -> None:
    arrived = threading.Event()

    def fail_late(request: Request) -> Iterable[FromEngine]:
        assert mode is PULL or arrived.wait(20)
        return fail(request)

    def arrive(request: Request) -> Iterable[FromEngine]:
        arrived.set()
        return []

    with pair(mode, prefill=fail_late, decode=arrive) as (_, taker, run):
        answer = run(lambda proxy: post(proxy, **BODY))
        assert answer.status_code == 503 and answer.json()["error"]["message"] == "no memory"
        assert answer.headers["retry-after"] == "1"
        if mode is PUSH:
            _until(taker.engine, lambda: len(taker.engine.cancels) == 1)
        else:
            assert taker.engine.requests == []


def test_a_client_that_leaves_ends_both_legs() -> None:
    with pair(PUSH, prefill=wait_for_ever, decode=wait_for_ever) as (giver, taker, run):
        engines = (giver.engine, taker.engine)

        async def leave(proxy: Proxy) -> None:
            asking = asyncio.create_task(post(proxy, **BODY))
            for engine in engines:
                await asyncio.to_thread(_until, engine, lambda engine=engine: bool(engine.requests))
            asking.cancel()
            for engine in engines:
                await asyncio.to_thread(_until, engine, lambda engine=engine: bool(engine.cancels))

        run(leave)


def _until(engine: ScriptedEngine, condition: Callable[[], bool]) -> None:
    with engine.news:
        assert engine.news.wait_for(condition, 20)


def test_what_is_no_object_is_worded_by_the_decode_server() -> None:
    async def odd(proxy: Proxy) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=proxy.url) as http:
            return [await http.post(PATH, content=content) for content in (b"", b"{", b"[]")]

    with pair(PULL) as (_, _, run):
        for answer in run(odd):
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "body"
