"""Hand-offs over HTTP: what reaches the engine, what its words become, figures and traces."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.core.exchange import TransferRecord
from baton.core.handoff import Handoff, PeerAddress, Role, Ticket, TransferMode
from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.stats import TransferStats
from baton.obs.chrome_trace import merge
from baton.server.config import ServerConfig
from baton.wire.engine import Admitted, FromEngine, Moment
from tests.server.harness import Server, events_of, serve
from tests.server.scripted import NOW, Script, ScriptedEngine, engine_info, output, peer_info, tokens
from tests.server.test_http_cases import check_error

pytestmark = pytest.mark.slow

PATH, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]
GIVE = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "t-1"}
TAKE = {"do_remote_prefill": True, "remote_host": "10.0.0.7", "remote_port": 5600, "transfer_id": "t-1"}
PROMPT = [5] * 40
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"  # the example of W3C Trace Context


def ticketed(request: Request) -> list[FromEngine]:
    """A giver as the scheduler is: each sequence has one token, the ticket comes with the end of the first."""
    assert request.handoff is not None
    ticket = Ticket(transfer_id=request.handoff.transfer_id, num_tokens=40, block_ids=(4, 5, 6))
    deltas = [tokens(request, index) for index in range(request.params.n)]
    first = SequenceDelta(**{name: getattr(deltas[0], name) for name in ("request_id", "index", "token_ids")})
    ended = SequenceDelta(request_id=request.request_id, index=0, finish_reason=FinishReason.LENGTH, ticket=ticket)
    return [output(first), output(ended), *(output(delta) for delta in deltas[1:])]


def answering(request: Request) -> list[FromEngine]:
    return [output(*(tokens(request, index) for index in range(request.params.n)))]


@contextmanager
def serving(script: Script, role: Role | None = Role.MIXED, tokenizer: str = "") -> Iterator[tuple[Server, Any]]:
    info = engine_info(None if role is None else peer_info(role), tokenizer)
    with serve(lambda: ScriptedEngine(info, script), ServerConfig(served_model_names=("MODEL",))) as server:
        yield server, server.engine


@pytest.fixture(scope="module")
def giver(tokenizer_folder: Path) -> Iterator[tuple[Server, ScriptedEngine]]:
    with serving(ticketed, Role.PREFILL, str(tokenizer_folder)) as running:
        yield running


@pytest.fixture(scope="module")
def taker(tokenizer_folder: Path) -> Iterator[tuple[Server, ScriptedEngine]]:
    with serving(answering, Role.DECODE, str(tokenizer_folder)) as running:
        yield running


def ticket_of(transfer_id: str) -> dict[str, Any]:
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "engine-prefill",
        "remote_request_id": transfer_id,
        "remote_block_ids": [[4, 5, 6]],
        "remote_host": "10.0.0.7",
        "remote_port": 5600,
        "tp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 40,
        "transfer_id": transfer_id,
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {"prompt": PROMPT, "max_tokens": 100, "min_tokens": 30}),
        (CHAT, {"messages": MESSAGES, "max_completion_tokens": 100, "min_tokens": 30}),
        (CHAT, {"messages": MESSAGES}),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_giver_answers_with_its_ticket(giver: Any, path: str, body: dict[str, Any], stream: bool) -> None:
    server, engine = giver
    body = {**body, "n": 2, "kv_transfer_params": GIVE}
    if stream:
        chunks = server.stream(path, **body)
        shown = [chunk for chunk in chunks if "kv_transfer_params" in chunk]
        ends = [chunk for chunk in chunks if chunk["choices"][0]["finish_reason"]]
        assert len(ends) == 2 and shown == [ends[-1]]
        answer = shown[0]
    else:
        answer = server.post(path, **body).json()
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "length"]
    assert answer["kv_transfer_params"] == ticket_of("t-1")
    request = engine.requests[-1]
    assert request.handoff == Handoff(transfer_id="t-1")
    assert (request.params.max_tokens, request.params.n) == (1, 2)
    assert request.params.min_tokens == min(1, body.get("min_tokens", 0))


def test_a_giver_makes_the_transfer_id_where_none_came(giver: Any) -> None:
    server, engine = giver
    made = []
    for _ in range(2):
        answer = server.complete(prompt=PROMPT, kv_transfer_params={"do_remote_decode": True})
        made.append(answer["kv_transfer_params"]["transfer_id"])
        assert answer["kv_transfer_params"] == ticket_of(made[-1])
        assert engine.requests[-1].handoff == Handoff(transfer_id=made[-1])
    assert len(set(made)) == 2


def test_plain_answers_have_the_bytes_they_have_without_a_peer(tokenizer_folder: Path) -> None:
    bodies = [
        (path, {**body, "max_tokens": 3, "seed": 1, "request_id": "same", "stream": stream})
        for path, body in ((PATH, {"prompt": PROMPT}), (CHAT, {"messages": MESSAGES}))
        for stream in (False, True)
    ]
    seen: list[list[bytes]] = []
    for role in (None, Role.MIXED):
        with serving(answering, role, str(tokenizer_folder)) as (server, engine), server.http() as http:
            plain = [{}, {"kv_transfer_params": None}, {"kv_transfer_params": {"do_remote_decode": False}}]
            answers = [http.post(path, json={**body, **each}) for path, body in bodies for each in plain]
            assert all(request.handoff is None for request in engine.requests)
            created = [json.loads(a.content.removeprefix(b"data: ").split(b"\n\n")[0])["created"] for a in answers]
            seen.append([a.content.replace(b'"created":%d' % at, b"") for a, at in zip(answers, created, strict=True)])
    assert seen[0] == seen[1]
    assert all(b"kv_transfer_params" not in answer for answer in seen[0])


@pytest.mark.parametrize("path", [PATH, CHAT])
def test_a_takers_request_says_where_the_kv_is(taker: Any, path: str) -> None:
    server, engine = taker
    prompt = {"prompt": PROMPT} if path == PATH else {"messages": MESSAGES}
    answer = server.post(path, **prompt, max_tokens=5, n=2, kv_transfer_params=ticket_of("t-9")).json()
    assert "kv_transfer_params" not in answer and answer["usage"]["completion_tokens"] == 10
    request = engine.requests[-1]
    source = PeerAddress(host="10.0.0.7", port=5600, engine_id="engine-prefill")
    assert request.handoff == Handoff(transfer_id="t-9", source=source, mode=TransferMode.PULL)
    assert (request.params.max_tokens, request.params.n) == (5, 2)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (PATH, {"prompt": PROMPT, "kv_transfer_params": GIVE}, "kv_transfer_params.do_remote_decode"),
        (PATH, {"prompt": PROMPT, "kv_transfer_params": {**TAKE, "remote_port": 0}}, "kv_transfer_params.remote_port"),
        (CHAT, {"messages": MESSAGES, "kv_transfer_params": {**TAKE, "tp_size": True}}, "kv_transfer_params.tp_size"),
        (PATH, {"prompt": [PROMPT, PROMPT], "kv_transfer_params": TAKE}, "prompt"),
        (PATH, {"prompt": ["a", "b"], "kv_transfer_params": TAKE}, "prompt"),
        (PATH, {"prompt": PROMPT, "prompt_logprobs": 0, "kv_transfer_params": TAKE}, "prompt_logprobs"),
        (PATH, {"prompt": PROMPT, "echo": True, "kv_transfer_params": TAKE}, "echo"),
        (CHAT, {"messages": MESSAGES, "prompt_logprobs": 1, "kv_transfer_params": TAKE}, "prompt_logprobs"),
        (PATH, {"prompt": PROMPT, "kv_transfer_params": "push"}, "kv_transfer_params"),
        (PATH, {"prompt": PROMPT, "kv_transfer_params": [TAKE]}, "kv_transfer_params"),
    ],
)
def test_refused_by_name(taker: Any, path: str, body: dict[str, Any], param: str) -> None:
    server, engine = taker
    before = len(engine.requests)
    response = server.post(path, **body)
    assert response.status_code == 400, response.text
    check_error(response, param)
    assert len(engine.requests) == before


def failing(reason: str | None) -> Script:
    def script(request: Request) -> Iterable[FromEngine]:
        yield output(
            SequenceDelta(request_id=request.request_id, index=0, finish_reason=FinishReason.ERROR, error=reason)
        )

    return script


LOST = "the peer at 10.0.0.7:5600 was lost"


@pytest.mark.parametrize(("reason", "status"), [(LOST, 503), (None, 422)])
def test_a_failed_handoff_may_be_tried_again(reason: str | None, status: int) -> None:
    with serving(failing(reason)) as (server, _):
        for stream in (False, True):
            response = server.post(PATH, prompt=PROMPT, stream=stream, kv_transfer_params=TAKE)
            assert response.status_code == status
            check_error(response, None)
            assert response.headers.get("retry-after") == ("1" if reason else None)
            assert (response.json()["error"]["message"] == LOST) == (reason is not None)


def test_a_handoff_that_fails_inside_a_stream_ends_it_with_an_event() -> None:
    seen = threading.Event()

    def script(request: Request) -> Iterable[FromEngine]:
        yield output(SequenceDelta(request_id=request.request_id, index=0, token_ids=(72,)))
        assert seen.wait(20)
        yield from failing(LOST)(request)

    body = {"prompt": PROMPT, "stream": True, "max_tokens": 4, "kv_transfer_params": TAKE}
    with serving(script) as (server, _), server.http() as http, http.stream("POST", PATH, json=body) as response:
        assert response.status_code == 200
        pieces = response.iter_raw()
        first = next(pieces)
        seen.set()
        events = events_of(first + b"".join(pieces))
    assert events[-1] == {"error": {"message": LOST, "type": "ServiceUnavailableError", "param": None, "code": 503}}
    assert len(events) == 2


def give_with_moments(request: Request) -> Iterable[FromEngine]:
    assert request.handoff is not None
    name = request.handoff.transfer_id
    yield output(
        at=2.0,
        admitted=(Admitted(request_id=request.request_id, time_s=NOW + 1.0),),
        moments=(Moment(transfer_id=name, what="grant", time_s=NOW + 1.0),),
    )
    end = SequenceDelta(
        request_id=request.request_id,
        index=0,
        token_ids=(72,),
        finish_reason=FinishReason.LENGTH,
        ticket=Ticket(transfer_id=name, num_tokens=40, block_ids=()),
    )
    record = TransferRecord(
        transfer_id=name,
        mode=TransferMode.PUSH,
        num_bytes=4000,
        num_descriptors=12,
        post_s=0.002,
        wire_s=0.25,
        exposed_s=0.03,
        early_bytes=3000,
        started_s=NOW + 2.0,
        ended_s=NOW + 3.03,
    )
    stats = TransferStats(num_links=1, num_leased=2, num_expired=3, failures={"post": 1, "notice": 2})
    moments = (Moment(transfer_id=name, what="prefilled", time_s=NOW + 3.0),)
    yield output(end, at=3.0, moments=moments, transfers=(record,), transfer_stats=stats)


def take_with_moments(request: Request) -> Iterable[FromEngine]:
    assert request.handoff is not None
    name = request.handoff.transfer_id
    first = SequenceDelta(request_id=request.request_id, index=0, token_ids=(72,))
    landed = Moment(transfer_id=name, what="landed", time_s=NOW + 3.1)
    yield output(at=1.5, moments=(Moment(transfer_id=name, what="reserve", time_s=NOW + 1.5),))
    yield output(first, at=3.1, moments=(landed,))
    admitted = (Admitted(request_id=request.request_id, time_s=NOW + 3.2),)
    yield output(tokens(request, count=3), at=5.0, admitted=admitted)


def spans(document: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Name -> (start, end) in ms after NOW, of complete events."""
    found = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            start_ms = event["ts"] / 1e3 - NOW * 1e3
            found[event["name"]] = (round(start_ms), round(start_ms + event["dur"] / 1e3))
    return found


def test_one_trace_over_both_engines() -> None:
    """Moments are the script's; arrival is the real clock's, so it is later than all of them here."""
    headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    documents = []
    for script, role, params in (
        (give_with_moments, Role.PREFILL, GIVE),
        (take_with_moments, Role.DECODE, TAKE),
    ):
        with serving(script, role) as (server, _), server.http(headers=headers) as http:
            body = {"prompt": PROMPT, "max_tokens": 4, "kv_transfer_params": params}
            assert http.post(PATH, json=body).status_code == 200
            answer = http.get("/trace/t-1")
            assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
            documents.append(answer.json())
            check_error(http.get("/trace/other"), None)
    for document, side in zip(documents, ("giver", "taker"), strict=True):
        assert document["otherData"] == {"trace_id": TRACE, "transfer_id": "t-1"}
        (whole,) = (event for event in document["traceEvents"] if event["name"] == "request")
        assert whole["args"]["side"] == side and whole["args"]["trace_id"] == TRACE
    giving, taking = map(spans, documents)
    assert giving["prefill"] == (1000, 3000) and giving["wire"] == (2000, 3030)
    assert taking["transfer"] == (1500, 3100) and taking["decode"] == (3100, 5000)
    both = merge(documents)
    assert {event["pid"] for event in both["traceEvents"]} == {"engine-prefill", "engine-decode"}
    assert both["otherData"] == {"trace_id": TRACE, "transfer_id": "t-1"}


def test_figures_of_a_giver() -> None:
    with serving(give_with_moments, Role.PREFILL) as (server, _):
        server.complete(prompt=PROMPT, kv_transfer_params=GIVE)
        figures = httpx.get(server.url + "/stats").json()["handoff"]
        text = httpx.get(server.url + "/metrics").text
    wanted = {
        "role": "prefill",
        "engine_id": "engine-prefill",
        "host": "10.0.0.7",
        "port": 5600,
        "num_links": 1,
        "num_leased": 2,
        "num_transfers": 1,
        "num_pushed": 1,
        "num_bytes": 4000,
        "early_share": 0.75,
        "failures": {"post": 1, "notice": 2},
    }
    assert {name: figures[name] for name in wanted} == wanted
    for line in (
        'baton_handoff_failures_total{engine="0",model_name="MODEL",reason="notice"} 2.0',
        'vllm:nixl_num_failed_transfers_total{engine="0",model_name="MODEL"} 3.0',
        'vllm:nixl_num_failed_notifications_total{engine="0",model_name="MODEL"} 2.0',
        'vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="MODEL"} 3.0',
        'vllm:nixl_bytes_transferred_sum{engine="0",model_name="MODEL"} 4000.0',
        'baton_handoff_leased{engine="0",model_name="MODEL"} 2.0',
    ):
        assert line in text


def test_tokens_that_came_by_a_handoff_were_not_computed_here() -> None:
    with serving(take_with_moments, Role.DECODE) as (server, _):
        server.complete(prompt=PROMPT, max_tokens=4, kv_transfer_params=TAKE)
        text = httpx.get(server.url + "/metrics").text
    labels = 'engine="0",model_name="MODEL",source='
    assert f'vllm:prompt_tokens_by_source_total{{{labels}"external_kv_transfer"}} 40.0' in text
    assert f'vllm:prompt_tokens_by_source_total{{{labels}"local_compute"}} 0.0' in text


def test_nothing_of_it_without_a_peer() -> None:
    with serving(answering, None) as (server, _):
        server.complete(prompt=PROMPT)
        text = httpx.get(server.url + "/metrics").text
        assert "handoff" not in httpx.get(server.url + "/stats").json()
        assert "nixl" not in text and "handoff" not in text and "external_kv_transfer" not in text
        assert httpx.get(server.url + "/trace/t-1").status_code == 404
        for params in (GIVE, TAKE):
            response = server.post(PATH, prompt=PROMPT, kv_transfer_params=params)
            assert response.status_code == 400 and "--role" in response.json()["error"]["message"]


def test_giving_up_reaches_the_engine_and_is_always_204(giver: tuple[Server, ScriptedEngine]) -> None:
    server, engine = giver
    with server.http() as http:
        for transfer_id in ("t-1", "a/b", "x" * 257):
            answer = http.delete(f"/handoffs/{transfer_id}")
            assert (answer.status_code, answer.content) == (204, b"")
    with engine.news:
        assert engine.news.wait_for(lambda: len(engine.given_up) == 2, 5)
    assert engine.given_up == ["t-1", "a/b"]


def test_an_engine_without_a_peer_gives_nothing_up(server: Server) -> None:
    with server.http() as http:
        assert http.delete("/handoffs/t-1").status_code == 404
