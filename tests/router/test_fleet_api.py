"""GET /fleet and /trace: figures, links and requests of made-up records, over real HTTP."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from baton.core.handoff import Role
from baton.obs import chrome_trace
from baton.router.failures import cause
from baton.router.figures import RouterFigures
from baton.router.fleet_json import latest
from baton.router.links import ByteRates, link_rows
from baton.router.panel import FleetPanel
from baton.router.record import Attempt, Journal
from baton.router.worker import WorkerState
from tests.router.showing import D0, D1, P0, P1, Shown, request, worker
from tests.web.serving import served


def near(ms: float) -> object:
    return pytest.approx(ms, rel=0.02)  # the width of a bucket


def test_a_window_says_how_it_went() -> None:
    figures = RouterFigures()
    for number in range(10):
        figures.observe(request(1000.0 + number))
    body = figures.window(60, 1010.4)
    assert body["requests"] == 10 and body["statuses"] == {"200": 10} and body["modes"] == {"push": 10}
    assert body["requests_per_s"] == pytest.approx(1.0, rel=0.01)  # from the first end, at 1000.432, to now
    assert body["new_tokens_per_s"] == pytest.approx(21.0, rel=0.01)
    assert body["cached_share"] == 0.25 and body["relayed_share"] == 1.0
    latency = body["latency_ms"]
    assert {name: latency[name]["p50"] for name in ("queue", "prefill", "handover", "first_decode")} == {
        "queue": near(2), "prefill": near(30), "handover": near(8), "first_decode": near(5)
    }  # fmt: skip
    assert latency["ttft"]["p99"] == near(32) and latency["whole"]["p90"] == near(432)
    assert latency["tpot"]["p50"] == near(20)  # (432 - 32) ms over 20 further tokens


def test_the_bar_of_a_mode_adds_up() -> None:
    figures = RouterFigures()
    for number in range(3):
        figures.observe(request(1000.0 + number))
    one_token = request(1003.0)  # came to no first decode step: it would make the means lie
    one_token.attempts[0].landed_s = one_token.attempts[0].decoded_s = None
    figures.observe(one_token)
    bar = figures.window(60, 1005.0)["first_tokens_ms"]["push"]
    parts = {"queue": 2, "retries": 0, "prefill": 30, "handover": 8, "first_decode": 5}
    assert {name: bar[name] for name in parts} == pytest.approx(parts, abs=1e-3)
    assert bar["total"] == pytest.approx(45, abs=1e-3) and bar["count"] == 3
    assert bar["first_token"] == pytest.approx(32, abs=1e-3)  # relayed: queue + prefill


def test_windows_forget_and_totals_do_not() -> None:
    figures = RouterFigures()
    figures.observe(request(1000.0))
    assert figures.window(60, 1100.0)["requests"] == 0
    assert figures.window(300, 1100.0)["requests"] == 1
    assert figures.requests == {("200", "push"): 1}


def test_retries_continuations_and_failures_are_told_apart() -> None:
    figures = RouterFigures()
    saved, continued, failed, left = (request(1000.0) for _ in range(4))
    broken = Attempt(transfer_id="x", mode="push", placed_s=1000.001, outcome="no connection to http://10.0.0.4:8000")
    saved.attempts.insert(0, broken)
    continued.attempts[0].outcome = "worker lost"
    continued.attempts.append(Attempt(transfer_id="", mode="single", placed_s=1000.2, continues=5, outcome="done"))
    failed.status, failed.error, failed.attempts = 503, "no decode worker is well", []
    left.status, left.attempts[0].outcome = 499, "the client left"
    for record in (saved, continued, failed, left):
        figures.observe(record)
    body = figures.window(60, 1001.0)
    assert (body["retries"], body["continuations"]) == (1, 1)
    assert (figures.retries, figures.continuations) == (1, 1)
    assert figures.attempts["push", "done"] == 1 and figures.attempts["push", "refused"] == 1  # saved, left
    assert body["failures"] == [
        {"of": "attempt", "cause": "no connection to *", "count": 1},
        {"of": "attempt", "cause": "worker lost", "count": 1},
        {"of": "request", "cause": "no decode worker is well", "count": 1},
    ]
    assert body["statuses"] == {"200": 2, "503": 1, "499": 1}


def test_an_error_inside_a_stream_is_a_failure() -> None:
    figures = RouterFigures()
    broken = request(1000.0)
    broken.error = "the decode worker died"
    figures.observe(broken)
    body = figures.window(60, 1001.0)
    assert body["failures"] == [{"of": "request", "cause": "the decode worker died", "count": 1}]
    assert "whole" not in body["latency_ms"] and "tpot" not in body["latency_ms"]  # only of what ended well


def test_causes_of_failure_are_bounded() -> None:
    assert cause(f"lost {'a1' * 16} at http://h:80/x\nmore") == "lost * at *"
    assert len(cause("x" * 1000)) == 60
    figures = RouterFigures()
    for number in range(1000):
        record = request(1000.0)
        record.attempts[0].outcome = f"failure of kind {number}"
        figures.observe(record)
    assert len(figures.attempts) == 3 + 32 + 1 and figures.attempts["push", "other"] == 1000 - 32
    assert len(figures.window(60, 1001.0)["failures"]) == 33


def test_bytes_a_second_of_what_was_looked_at() -> None:
    rates = ByteRates()
    assert rates.rates({"a": 1000}, 10.0) == {}
    assert rates.rates({"a": 3000}, 12.0) == {"a": 1000.0}
    assert rates.rates({"a": 100}, 13.0) == {}  # it began anew
    assert rates.rates({}, 14.0) == {} and rates.rates({"a": 900}, 15.0) == {}


def test_the_bytes_of_a_giver_are_shared_out_over_its_links() -> None:
    counts = {
        (P0, D0, "push"): {"transfers": 3, "link_tokens": 300, "link_failures": 1},
        (P0, D1, "push"): {"transfers": 1, "link_tokens": 100},
        (P1, D0, "push"): {"transfers": 1, "link_tokens": 50},
    }
    rows = link_rows(counts, {P0: 400.0, P1: 70.0, D0: 9.0}, 60)
    got = [(row["prefill"], row["decode"], row["bytes_per_s"], row["estimate"], row["failures"]) for row in rows]
    assert got == [(P0, D0, 300.0, True, 1), (P0, D1, 100.0, True, 0), (P1, D0, 70.0, False, 0)]


def test_in_pull_the_taker_counts_the_bytes() -> None:
    (row,) = link_rows({(P0, D0, "pull"): {"transfers": 1, "link_tokens": 1}}, {P0: 5.0, D0: 8.0}, 60)
    assert row["bytes_per_s"] == 8.0 and row["estimate"] is False


def test_a_pair_that_hands_over_in_both_modes_has_a_link_for_each() -> None:
    """What a giver pushes is no part of what its taker pulls."""
    counts = {
        (P0, D0, "push"): {"transfers": 2, "link_tokens": 100},
        (P0, D0, "pull"): {"transfers": 1, "link_tokens": 100},
        (P1, D0, "pull"): {"transfers": 4, "link_tokens": 300},
    }
    rows = link_rows(counts, {P0: 50.0, D0: 80.0}, 60)
    got = [(row["prefill"], row["decode"], row["mode"], row["bytes_per_s"], row["estimate"]) for row in rows]
    assert got == [(P1, D0, "pull", 60.0, True), (P0, D0, "pull", 20.0, True), (P0, D0, "push", 50.0, False)]
    assert [row["transfers"] for row in rows] == [4, 1, 2]
    (gone,) = link_rows({(P0, D1, "pull"): {"link_tokens": 1}}, {P0: 50.0}, 60)
    assert gone["bytes_per_s"] is None  # nothing is known of its taker


def test_attempts_count_for_the_link_of_their_mode() -> None:
    figures = RouterFigures()
    pushed, pulled, alone = (request(1000.0) for _ in range(3))
    pulled.attempts[0].mode = "pull"
    pulled.attempts[0].landed_s, pulled.attempts[0].outcome = None, "worker lost"
    alone.attempts[0].mode, alone.attempts[0].prefill = "single", ""
    for record in (pushed, pulled, alone):
        figures.observe(record)
    assert figures.links(60, 1001.0) == {
        (P0, D0, "push"): {"transfers": 1, "link_tokens": 100, "link_failures": 0},
        (P0, D0, "pull"): {"transfers": 0, "link_tokens": 100, "link_failures": 1},
    }


def test_the_fleet_as_json() -> None:
    down = worker(D0, Role.DECODE, WorkerState.DOWN, note="no answer for 2.4 s", breaker="open", unpaired={P0: "why"})
    new = replace(worker(D1, Role.DECODE, WorkerState.STARTING), facts=None, role=None, api_key="secret")
    shown = Shown((worker(P0, Role.PREFILL, handoff={"num_bytes": 7}), down, new))
    shown.add(request(1000.0, "first"))
    shown.add(request(1001.0, "x" * 5000))
    with served(shown.app()) as url:
        answer = httpx.get(f"{url}fleet")
        few = httpx.get(f"{url}fleet?requests=1").json()
        bad = httpx.get(f"{url}fleet?requests=-1")
    body = answer.json()
    assert answer.headers["cache-control"] == "no-store" and "secret" not in answer.text
    assert [each["state"] for each in body["workers"]] == ["ready", "down", "starting"]
    assert body["workers"][0]["outstanding"] == {"requests": 4, "tokens": 1234, "inbound_tokens": 0}
    assert body["workers"][0]["handoff"]["num_bytes"] == 7
    assert body["workers"][1]["note"] == "no answer for 2.4 s" and body["workers"][1]["breaker"] == "open"
    assert body["workers"][1]["unpaired"] == [{"reason": "why", "with": [P0]}]
    assert body["workers"][0]["facts"]["transfer_modes"] == ["pull", "push"]
    assert body["workers"][2]["facts"] is None and body["workers"][2]["role"] is None
    assert [len(each["request_id"]) for each in body["requests"]] == [160, 5]
    assert body["requests"][1]["parts"]["prefill"] == pytest.approx(30, abs=0.01)
    assert body["requests"][1]["spans"][0] == ["queue", "router", 0.0, pytest.approx(2, abs=0.01)]
    assert len(few["requests"]) == 1
    assert bad.status_code == 400 and "requests must be a number" in bad.json()["error"]["message"]


def test_requests_that_run_leave_half_the_room_to_those_that_ended() -> None:
    journal = Journal()
    for number in range(10):
        journal.start(request(1000.0 + number, f"live{number}"))
    for number in range(3):
        ended = request(1000.0 + number, f"ended{number}")
        journal.start(ended)
        journal.finish(ended)
    assert [each.request_id for each in latest(journal, 4)] == ["live9", "live8", "ended2", "ended1"]
    assert [each.request_id for each in latest(journal, 8)][4:] == ["live5", "ended2", "ended1", "ended0"]


def engine(name: str, start_s: float) -> Starlette:
    """A worker that knows one transfer."""

    async def trace(http: HttpRequest) -> Response:
        if http.path_params["transfer_id"] != "a b/c":
            return JSONResponse({"error": {}}, 404)
        span = chrome_trace.Span(name="prefill", start_s=start_s, end_s=start_s + 1, row="request")
        facts = {"trace_id": "7" * 32, "transfer_id": "a b/c"}
        return JSONResponse(chrome_trace.document([span], process=name, process_name=name, label="a b/c", facts=facts))

    return Starlette(routes=[Route("/trace/{transfer_id:path}", trace)])


def test_a_trace_of_router_and_both_engines() -> None:
    shown = Shown()
    with served(engine("e-p", 1000.0)) as prefill, served(engine("e-d", 1000.5)) as decode, served(shown.app()) as url:
        workers = (worker(prefill.rstrip("/"), Role.PREFILL), worker(decode.rstrip("/"), Role.DECODE))
        shown.panel = FleetPanel(workers=workers)
        shown.add(request(999.0, prefill=workers[0].url, decode=workers[1].url, transfer_id="a b/c"))
        shown.add(request(999.0, prefill=workers[0].url, decode="http://gone", transfer_id="other"))
        document = httpx.get(f"{url}trace/a%20b%2Fc").json()
        alone = httpx.get(f"{url}trace/other").json()
        unknown = httpx.get(f"{url}trace/nobody")
    spans = [(each["pid"], each["name"]) for each in document["traceEvents"] if each["ph"] == "X"]
    own = [("router", name) for name in ("request", "queue", "prefill", "handover", "first_decode", "stream")]
    assert spans == [*own, ("e-p", "prefill"), ("e-d", "prefill")]
    assert document["otherData"] == {"trace_id": "7" * 32, "transfer_id": "a b/c"}
    assert alone["otherData"] == {"transfer_id": "other", "missing": [workers[0].url, "http://gone"]}
    assert unknown.status_code == 404 and "no recent request" in unknown.json()["error"]["message"]
