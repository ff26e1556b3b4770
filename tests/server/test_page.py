"""The page, its figures and its policy; and the page in a real browser against a server that answers as ours does."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from baton.core.handoff import Role
from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.sampling import SamplingParams
from baton.core.stats import SchedulerStats, TransferStats
from baton.server.engine_client import EngineClient, EngineState
from baton.server.metrics import ServerMetrics
from baton.server.page import routes
from baton.web.page import content_security_policy, load_page
from baton.wire.engine import Admitted, EngineInfo, Output, PeerInfo
from tests.server.scripted import peer_info
from tests.server.webdriver import CHROMEDRIVER, CHROMIUM, Browser, browser
from tests.web.serving import served

pytestmark = pytest.mark.slow

needs_browser = pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason="no chromium with chromedriver")
ENTER, ESCAPE, TAB = "\ue007", "\ue00c", "\ue004"

INFO = EngineInfo(
    model="/models/tiny",
    tokenizer="",
    architecture="LlamaForCausalLM",
    dtype="bfloat16",
    device="cpu",
    fingerprint="0" * 32,
    eos_token_ids=frozenset((2,)),
    vocab_size=1000,
    max_model_len=2048,
    max_num_seqs=64,
    block_tokens=16,
    num_blocks=1024,
    incarnation="this-start",
)


def stats(**changes: int) -> SchedulerStats:
    values = {
        "num_running": 3,
        "num_waiting": 1,
        "num_preemptions": 0,
        "used_blocks": 256,
        "total_blocks": 1024,
        "quarantined_blocks": 0,
        "prefix_query_tokens": 200,
        "prefix_hit_tokens": 50,
    }
    return SchedulerStats(**(values | changes))


def filled_metrics(peer: PeerInfo | None = None) -> ServerMetrics:
    """One request of 20 ms to its first token, then 10 tokens, 5 ms each."""
    metrics = ServerMetrics(msgspec.structs.replace(INFO, peer=peer), "tiny")
    now = time.time()
    params = SamplingParams(max_tokens=11)
    metrics.start(Request(request_id="r", prompt_token_ids=(1,) * 100, params=params), arrival_s=now)
    admitted = (Admitted(request_id="r", time_s=now + 0.01),)
    for step in range(11):
        reason = FinishReason.LENGTH if step == 10 else None
        delta = SequenceDelta(request_id="r", index=0, token_ids=(7,), finish_reason=reason)
        metrics.on_output(
            Output(
                deltas=(delta,),
                stats=stats(),
                time_s=now + 0.02 + 0.005 * step,
                num_tokens=100 if step == 0 else 1,
                admitted=admitted if step == 0 else (),
            )
        )
    return metrics


def engine(peer: PeerInfo | None = None) -> EngineClient:
    """A client whose engine is ready and runs what `stats` says."""
    client = EngineClient()
    client.info, client.state = msgspec.structs.replace(INFO, peer=peer), EngineState.READY
    client.stats, client.transfer_stats = stats(pinned_blocks=7, num_reserved=2), TransferStats(num_leased=5)
    return client


def test_stats_say_what_is_served_and_how_it_goes() -> None:
    client = TestClient(Starlette(routes=routes(filled_metrics(), engine(), models=["tiny"], chat=True)))
    answer = client.get("/stats")
    body = answer.json()
    assert answer.headers["cache-control"] == "no-store"
    assert body["state"] == "ready"
    assert (
        body["served"]["model"] == "tiny" and body["served"]["dtype"] == "bfloat16" and body["served"]["chat"] is True
    )
    assert body["served"]["kv_cache_tokens"] == 16 * 1024
    assert (body["running"], body["waiting"], body["kv_use"], body["prefix_hit_rate"]) == (3, 1, 0.25, 0.25)
    assert body["ttft_ms"] == pytest.approx({"p50": 20.0, "p90": 20.0, "p99": 20.0}, rel=1e-3)
    assert body["tpot_ms"] == pytest.approx({"p50": 5.0, "p90": 5.0, "p99": 5.0}, rel=1e-3)
    assert body["generation_tokens_per_s"] > 0 and body["requests_finished"] == 1
    assert "handoff" not in body


@pytest.mark.parametrize(("peer", "role"), [(None, "mixed"), (peer_info(Role.DECODE), "decode")])
def test_stats_tell_a_router_who_it_talks_to_and_who_holds_what(peer: PeerInfo | None, role: str) -> None:
    app = Starlette(routes=routes(filled_metrics(peer), engine(peer), models=["tiny", "alias"], chat=True))
    body = TestClient(app).get("/stats").json()
    served = {name: body["served"][name] for name in ("models", "role", "fingerprint", "incarnation", "num_blocks")}
    assert served == {
        "models": ["tiny", "alias"],
        "role": role,
        "fingerprint": INFO.fingerprint,
        "incarnation": "this-start",
        "num_blocks": 1024,
    }
    assert body["engine_silent_s"] == 0.0
    assert body["pools"] == {
        "used_blocks": 256,
        "total_blocks": 1024,
        "pinned_blocks": 7,
        "quarantined_blocks": 0,
        "num_running": 3,
        "num_waiting": 1,
        "num_reserved": 2,
        "num_leased": 5,
        "num_in_flight": 0,
    }
    assert ("handoff" in body) == (peer is not None)


@pytest.mark.parametrize("path", ["/", "/stats", "/metrics"])
def test_head_gives_the_headers_of_get(path: str) -> None:
    client = TestClient(Starlette(routes=routes(filled_metrics(), engine(), models=["tiny"], chat=True)))
    get, head = client.get(path), client.head(path)
    assert (get.status_code, head.status_code) == (200, 200)
    assert head.headers["content-type"] == get.headers["content-type"]


def test_metrics_come_as_the_text_format() -> None:
    client = TestClient(Starlette(routes=routes(filled_metrics(), engine(), models=["tiny"], chat=True)))
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 3.0' in answer.text


def test_the_page_needs_nothing_from_elsewhere() -> None:
    html = load_page("baton.server").html.decode()
    outside = [url for url in re.findall(r"(?:https?:)?//[\w.]+", html) if url != "http://www.w3.org"]
    assert outside == []  # www.w3.org names the SVG namespace of the icon, it is not fetched
    assert re.findall(r"""(?:src|href)=["'](?!data:|metrics|v1/)""", html) == []
    assert " style=" not in html and not re.search(r"\son\w+=", html)  # the policy would not let them work


def test_the_policy_allows_exactly_this_script_and_this_style() -> None:
    policy = content_security_policy("<style>a{}</style><script>f()</script>")
    script = base64.b64encode(hashlib.sha256(b"f()").digest()).decode()
    style = base64.b64encode(hashlib.sha256(b"a{}").digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{script}';" in policy and f"style-src 'sha256-{style}';" in policy
    assert "unsafe" not in policy


class Api:
    """Answers completions as a server does, word by word; remembers the bodies it got."""

    def __init__(self, *, key: str | None = None, endless: bool = False, broken: bool = False) -> None:
        self.bodies: list[dict[str, object]] = []
        self.ended = 0
        self._key = key
        self._endless = endless
        self._broken = broken

    async def answer(self, request: HttpRequest) -> Response:
        if self._key and request.headers.get("authorization") != f"Bearer {self._key}":
            error = {"message": "The API key is not valid.", "type": "AuthenticationError", "param": None, "code": 401}
            return JSONResponse({"error": error}, 401)
        self.bodies.append(await request.json())
        chat = request.url.path.endswith("chat/completions")
        return StreamingResponse(self._events(chat), media_type="text/event-stream")

    async def _events(self, chat: bool) -> AsyncIterator[str]:
        try:
            if chat:
                yield _event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
            for word in ["Once", " upon", " a", " time", " <b>\U0001f44b</b>\n"] * (1000 if self._endless else 1):
                await asyncio.sleep(0.02)
                choice = {"delta": {"content": word}} if chat else {"text": word}
                yield _event({"choices": [{"index": 0, "finish_reason": None, **choice}]})
            if self._broken:
                yield _event({"error": {"message": "The engine has stopped.", "type": "x", "param": None, "code": 500}})
                yield "data: [DONE]\n\n"
                return
            yield _event(
                {"choices": [{"index": 0, "finish_reason": "length", **({"delta": {}} if chat else {"text": ""})}]}
            )
            yield _event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}})
            yield "data: [DONE]\n\n"
        finally:
            self.ended += 1


def _event(value: object) -> str:
    return f"data: {json.dumps(value)}\n\n"


@contextmanager
def serving(api: Api, *, chat: bool = True, peer: PeerInfo | None = None) -> Iterator[str]:
    """The page and this API on a free port, in a thread; the base URL."""
    paths = ("/v1/completions", "/v1/chat/completions")
    app = Starlette(
        routes=[
            *routes(filled_metrics(peer), engine(peer), models=["tiny"], chat=chat),
            *(Route(path, api.answer, methods=["POST"]) for path in paths),
        ]
    )
    with served(app) as url:
        yield url


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as session:
        yield session


def idle(page: Browser) -> bool:
    return bool(page.run("return !document.getElementById('send').hidden"))


@needs_browser
def test_a_person_chats(chromium: Browser) -> None:
    api = Api()
    with serving(api) as url:
        chromium.open(url)
        chromium.wait(lambda: chromium.text("#state") == "ready", "figures")
        assert chromium.text("#model") == "tiny" and "16,384 tokens" in chromium.text("#served")
        assert (
            chromium.text("#running") == "3" and chromium.text("#ttft-p50") == "20" and chromium.text("#kv") == "25 %"
        )
        chromium.type("#prompt", f"Hello{ENTER}")
        chromium.wait(lambda: "5 tokens" in chromium.text("#log"), "the end of the answer")
        assert chromium.run("return document.getElementById('handoff').hidden") is True
        assert "Once upon a time <b>\U0001f44b</b>" in chromium.text("#log")  # shown as text, never as HTML
        assert "reached the length limit" in chromium.text("#log")
        chromium.type("#prompt", f"More{ENTER}")
        chromium.wait(lambda: idle(chromium) and len(api.bodies) == 2, "the second answer")
        errors = chromium.log()
    assert [turn["role"] for turn in api.bodies[1]["messages"]] == ["user", "assistant", "user"]  # type: ignore[attr-defined]
    assert api.bodies[0]["model"] == "tiny" and api.bodies[0]["stream"] is True
    assert errors == []


@needs_browser
def test_a_peer_has_a_panel_of_its_own(chromium: Browser) -> None:
    with serving(Api(), peer=peer_info(Role.DECODE)) as url:
        chromium.open(url)
        chromium.wait(lambda: "decode" in chromium.text("#handoff-figures"), "figures")
        assert "Pinned blocks" in chromium.text("#handoff") and chromium.log() == []


@needs_browser
def test_stop_ends_the_stream_on_the_server(chromium: Browser) -> None:
    api = Api(endless=True)
    with serving(api) as url:
        chromium.open(url)
        chromium.wait(lambda: chromium.text("#state") == "ready", "figures")
        chromium.type("#prompt", f"Hello{ENTER}")
        chromium.wait(lambda: "upon" in chromium.text("#log"), "some text")
        chromium.click("#stop")
        chromium.wait(lambda: "Stopped." in chromium.text("#log") and api.ended == 1, "the stop")
        chromium.type("#prompt", f"Again{ENTER}")
        chromium.wait(lambda: len(api.bodies) == 2, "the second request")
        chromium.type("body", ESCAPE)
        chromium.wait(lambda: idle(chromium) and api.ended == 2, "Escape to stop it")


@needs_browser
def test_without_a_template_it_completes_text(chromium: Browser) -> None:
    api = Api()
    with serving(api, chat=False) as url:
        chromium.open(url)
        chromium.wait(lambda: chromium.text("#state") == "ready", "figures")
        assert chromium.run("return document.getElementById('chat').disabled") is True
        chromium.type("#prompt", f"There was{ENTER}")
        chromium.wait(lambda: "5 tokens" in chromium.text("#log"), "the end of the text")
        assert "There wasOnce upon a time" in chromium.text("#log")
    assert api.bodies[0]["prompt"] == "There was" and "messages" not in api.bodies[0]


@needs_browser
def test_a_refused_key_is_explained_and_can_be_given(chromium: Browser) -> None:
    api = Api(key="secret")
    with serving(api) as url:
        chromium.open(url)
        chromium.wait(lambda: chromium.text("#state") == "ready", "figures")
        chromium.type("#prompt", f"Hello{ENTER}")
        chromium.wait(lambda: "The API key is not valid." in chromium.text(".note.bad"), "the error")
        chromium.type("#key", "secret")
        chromium.type("#prompt", f"Hello{ENTER}")
        chromium.wait(lambda: "5 tokens" in chromium.text("#log"), "the answer")


@needs_browser
def test_failures_are_shown(chromium: Browser) -> None:
    with serving(Api(broken=True)) as url:
        chromium.open(url)
        chromium.wait(lambda: chromium.text("#state") == "ready", "figures")
        chromium.type("#prompt", f"Hello{ENTER}")
        chromium.wait(lambda: idle(chromium) and "The engine has stopped." in chromium.text("#log"), "the error event")
        assert "Once upon a time" in chromium.text("#log")  # what had come stays
    chromium.wait(lambda: chromium.text("#state") == "unreachable", "the end of the server")


@needs_browser
def test_the_keyboard_reaches_everything_and_a_phone_needs_no_sideways_scrolling(chromium: Browser) -> None:
    with serving(Api()) as url:
        chromium.open(url)
        chromium.wait(lambda: chromium.text("#state") == "ready", "figures")
        reached = []
        chromium.run("document.getElementById('log').focus()")
        for _ in range(6):
            chromium.type(":focus", TAB)
            reached.append(chromium.run("return document.activeElement.id || document.activeElement.tagName"))
        assert reached == ["prompt", "chat", "clear", "send", "SUMMARY", "A"]
        size = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
        chromium.command("Emulation.setDeviceMetricsOverride", **size)
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert chromium.run(wide) == 0
        chromium.command("Emulation.clearDeviceMetricsOverride")
