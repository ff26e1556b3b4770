"""/metrics of the router, and those of all workers in one valid text."""

from __future__ import annotations

import socket
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from baton.core.handoff import Role
from baton.router.exposition import merge_expositions
from baton.router.panel import FleetPanel
from baton.router.record import Attempt
from baton.router.worker import WorkerState
from tests.router.showing import D0, P0, Shown, request, worker
from tests.web.serving import served

SERVER = """\
# HELP vllm:num_requests_running Sequences in the running batch.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="ti,n}y \\"x\\""} 3.0
# HELP vllm:prompt_tokens_total Prompt tokens.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0"} 100.0
# HELP vllm:ttft_seconds Arrival to first token.
# TYPE vllm:ttft_seconds histogram
vllm:ttft_seconds_bucket{engine="0",le="0.1"} 1.0
vllm:ttft_seconds_bucket{engine="0",le="+Inf"} 2.0
vllm:ttft_seconds_count{engine="0"} 2.0
vllm:ttft_seconds_sum{engine="0"} 0.5
# HELP process_open_fds Open files.
# TYPE process_open_fds gauge
process_open_fds 12.0
"""


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(name, labels) -> value, by the library's own parser, which refuses what is malformed."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_the_router_says_of_requests_and_workers() -> None:
    shown = Shown((worker(P0, Role.PREFILL), worker(D0, Role.DECODE, WorkerState.DOWN, breaker="open")))
    shown.panel = FleetPanel(workers=shown.panel.workers, num_queued=2)
    retried = request(time.time())
    retried.attempts.insert(0, Attempt(transfer_id="x", mode="pull", placed_s=time.time(), outcome="worker lost"))
    shown.add(request(time.time()))
    shown.add(retried)
    running = request(time.time())
    running.ended_s = None
    shown.add(running)
    with served(shown.app()) as url:
        answer = httpx.get(f"{url}metrics")
        head = httpx.head(f"{url}metrics")
    assert head.headers["content-type"] == answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    got = samples(answer.text)

    def value(name: str, **labels: str) -> float:
        return got[f"baton_router_{name}", frozenset(labels.items())]

    assert value("requests_total", status="200", mode="push") == 2
    assert value("attempts_total", mode="push", outcome="done") == 2
    assert value("attempts_total", mode="pull", outcome="worker lost") == 1
    assert value("retries_total") == 1 and value("continuations_total") == 0 and value("relayed_total") == 2
    assert (value("prompt_tokens_total"), value("cached_tokens_total"), value("generation_tokens_total")) == (
        200,
        50,
        42,
    )
    assert value("live_requests") == 1 and value("queued_requests") == 2
    assert value("first_tokens_seconds_count", part="handover") == 2
    assert value("first_tokens_seconds_sum", part="handover") == pytest.approx(0.016, abs=1e-4)
    assert value("first_tokens_seconds_bucket", part="handover", le="0.005") == 0
    assert value("first_tokens_seconds_bucket", part="handover", le="0.01") == 2  # 8 ms each
    assert value("time_to_first_token_seconds_count") == 2 and value("request_seconds_count") == 2
    assert value("worker_state", worker=D0, role="decode", state="down") == 1
    assert value("worker_state", worker=D0, role="decode", state="ready") == 0
    assert (
        value("worker_breaker", worker=D0, state="open") == 1 and value("worker_breaker", worker=P0, state="open") == 0
    )
    assert value("worker_outstanding_requests", worker=P0) == 4
    assert value("worker_used_blocks", worker=P0) == 256
    assert any(name == "process_cpu_seconds_total" for name, _ in got)


def test_a_fleet_without_workers_and_requests_has_metrics() -> None:
    shown = Shown()
    with served(shown.app()) as url:
        assert samples(httpx.get(f"{url}metrics").text)["baton_router_live_requests", frozenset()] == 0


def test_each_family_stands_once_and_each_sample_names_its_worker() -> None:
    merged = merge_expositions({"a": SERVER, 'b"\\': SERVER})
    assert merged.count("# TYPE vllm:ttft_seconds histogram\n") == merged.count("# HELP vllm:ttft_seconds ") == 1
    got, single = samples(merged), samples(SERVER)
    assert len(got) == 2 * len(single)
    for (name, labels), value in single.items():
        for each in ("a", 'b"\\'):
            assert got[name, labels | {("worker", each)}] == value
    heads = [line for line in merged.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads)) == 4
    types = {family.name: family.type for family in text_string_to_metric_families(merged)}
    assert types["vllm:ttft_seconds"] == "histogram" and types["vllm:prompt_tokens"] == "counter"


def test_a_label_worker_of_its_own_is_kept_under_another_name() -> None:
    merged = merge_expositions({"a": 'x{worker="7",other_worker="8"} 1\ny{z="a,worker=\\"q"} 2 1700000000\n'})
    assert 'x{worker="a",exported_worker="7",other_worker="8"} 1\n' in merged
    assert 'y{worker="a",z="a,worker=\\"q"} 2 1700000000\n' in merged


def test_a_family_of_another_type_is_left_out_and_so_is_rubbish() -> None:
    counter, gauge = "# TYPE x counter\nx 1\n", "# TYPE x gauge\nx 2\n"
    merged = merge_expositions({"a": counter, "b": gauge, "c": "<html>\nx{ 3\n\x00\n# EOF\r\n", "d": "x 5\r\n"})
    assert merged == '# TYPE x counter\nx{worker="a"} 1\n'
    assert merge_expositions({}) == ""


def metrics_of(text: str, status: int = 200) -> Starlette:
    async def answer(_: HttpRequest) -> Response:
        return PlainTextResponse(text, status)

    return Starlette(routes=[Route("/metrics", answer)])


def test_the_workers_metrics_are_asked_together_and_silence_is_not_waited_for() -> None:
    shown = Shown()
    with (
        socket.socket() as silent,
        served(metrics_of(SERVER)) as good,
        served(metrics_of("x 1", 500)) as broken,
        served(shown.app()) as url,
    ):
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        urls = [
            good.rstrip("/"),
            broken.rstrip("/"),
            f"http://127.0.0.1:{silent.getsockname()[1]}",
            "http://127.0.0.1:9",
        ]
        shown.panel = FleetPanel(workers=tuple(worker(each, Role.MIXED) for each in urls))
        start = time.monotonic()
        answer = httpx.get(f"{url}metrics/cluster", timeout=20)
        took_s = time.monotonic() - start
    got = samples(answer.text)
    scraped = [got["baton_router_worker_scraped", frozenset({("worker", each)})] for each in urls]
    assert scraped == [1, 0, 0, 0] and took_s < 4  # 2 s for the one that is silent
    assert got["process_open_fds", frozenset({("worker", urls[0])})] == 12
    assert answer.text.count("# HELP baton_router_worker_scraped") == 1
