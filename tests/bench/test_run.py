"""Runs against a server of known latencies, in a process of its own: what is measured is what it did.

The stub notes when it read a request and wrote each token, by the same clock; the right values are worked out from that
with the standard library. Other load on the machine delays the client, so a comparison may be tried again: that it can
fail is shown by a wrong value.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import time
import urllib.request
from typing import Any

import numpy as np
import pytest
import uvloop
from scipy import stats

from baton.bench.answer import Answer
from baton.bench.arrivals import Arrivals, Steady
from baton.bench.asks import Lengths, RandomTokens, asked
from baton.bench.bodies import Asking
from baton.bench.client import Client
from baton.bench.kinds import Endpoint
from baton.bench.load import Live, Load
from baton.bench.result import Result
from baton.bench.run import Target, run, sender
from baton.bench.workload import PromptFile, WorkloadOptions
from baton.core.errors import ConfigError
from tests.bench.conftest import StartStub, until_it_holds
from tests.bench.stub import CUT_OFF, ERROR_EVENT, NO_DONE, STATUS_500

VLLM_KEYS = """
date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency duration
completed failed total_input_tokens total_output_tokens request_throughput request_goodput output_throughput
total_token_throughput input_lens output_lens ttfts itls latencies start_times queue_times generated_texts errors
max_output_tokens_per_s max_concurrent_requests rtfx mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms mean_tpot_ms
median_tpot_ms std_tpot_ms p99_tpot_ms mean_itl_ms median_itl_ms std_itl_ms p99_itl_ms mean_e2el_ms median_e2el_ms
std_e2el_ms p99_e2el_ms
"""
"""Of a result of `vllm bench serve --save-detailed`, 0.32.0."""


def measure(
    url: str, arrivals: Arrivals, *, count: int, out: int, concurrency: int | None = None, **target: Any
) -> Result:
    data = RandomTokens(inputs=Lengths(tokens=32), outputs=Lengths(tokens=out))
    options = WorkloadOptions(
        data=data, arrivals=arrivals, count=count, max_concurrency=concurrency, num_warm_up=0, seed=1
    )
    return uvloop.run(run(Target(url=url, **target), options, slo_ms={"ttft": 320.0, "e2el": 1000.0}, facts={}))


def log_of(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(url + "/log", timeout=5) as answer:
        found: list[dict[str, Any]] = json.load(answer)
        return found


def truth(log: list[dict[str, Any]]) -> dict[str, float]:
    """What the server did, in ms and by second."""
    ttft = [each["written_s"][0] - each["read_s"] for each in log]
    whole = [each["written_s"][-1] - each["read_s"] for each in log]
    pace = [(w - f) / (each["tokens"] - 1) for w, f, each in zip(whole, ttft, log, strict=True)]
    gaps = [b - a for each in log for a, b in zip(each["written_s"], each["written_s"][1:], strict=False)]
    found = {}
    for name, values in (("ttft", ttft), ("tpot", pace), ("itl", gaps), ("e2el", whole)):
        found[f"mean_{name}_ms"] = statistics.mean(values) * 1e3
        found[f"median_{name}_ms"] = statistics.median(values) * 1e3
        found[f"p90_{name}_ms"] = statistics.quantiles(values, n=10, method="inclusive")[8] * 1e3
    return found


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_every_metric_is_right_within_one_percent(start_stub: StartStub, tmp_path: Any, endpoint: Endpoint) -> None:
    """Latencies, throughput and goodput; completions and chats."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hello"}\n')

    def check() -> None:
        url = start_stub("--ttft-ms", "200", "--step-ms", "80")
        options = WorkloadOptions(
            data=PromptFile(path=prompts, output_tokens=10), arrivals=Steady(rate=20), count=40, num_warm_up=0
        )
        slo = {"ttft": 300.0}  # of the stub's 200, 240, 280, 320 and 360 ms, three fifths
        result = uvloop.run(run(Target(url=url, endpoint=endpoint), options, slo_ms=slo, facts={}))
        log = log_of(url)
        assert result["completed"] == 40
        for name, value in truth(log).items():
            assert result[name] == pytest.approx(value, rel=0.01), name
        first_due_s = result["start_times"][0] - result["queue_times"][0]
        took_s = max(each["written_s"][-1] for each in log) - min(each["read_s"] for each in log) + first_due_s
        assert result["output_throughput"] == pytest.approx(400 / took_s, rel=0.01)
        assert result["request_throughput"] == pytest.approx(40 / took_s, rel=0.01)
        assert result["request_goodput"] == pytest.approx(24 / took_s, rel=0.01)

    until_it_holds(check)


def test_500_requests_a_second_from_one_process(start_stub: StartStub) -> None:
    """At less than a millisecond of CPU a request, and sent when they are due, by the server's clock too: arrivals
    there are a Poisson process. Where others keep the cores busy, nobody can be in time: then only the cost counts.
    """

    def check() -> None:
        url = start_stub("--ttft-ms", "20", "--step-ms", "5")
        result = measure(url, Steady(rate=500), count=1500, out=8)
        client = result["client"]
        assert result["completed"] == 1500
        assert client["cpu_share"] * result["duration"] / 1500 < 1e-3
        read_s = sorted(each["read_s"] for each in log_of(url))
        assert 1499 / (read_s[-1] - read_s[0]) == pytest.approx(500, rel=0.05)
        if os.getloadavg()[0] > 0.75 * (os.cpu_count() or 1):
            return
        assert client["p50_send_lag_ms"] < 1.5
        assert client["p99_send_lag_ms"] < 10
        assert result["warnings"] == []
        # Timers have steps of a millisecond, half a gap: windows of 20 ms tell a Poisson process, with 10 in each. The
        # index of dispersion of its counts, times the degrees of freedom, follows a chi-squared distribution.
        counts, _ = np.histogram(read_s, bins=np.arange(read_s[0], read_s[-1], 0.02))
        low, high = stats.chi2(len(counts) - 1).ppf([1e-5, 1 - 1e-5]) / (len(counts) - 1)
        assert low < counts.var(ddof=1) / counts.mean() < high

    until_it_holds(check)


def test_a_slow_client_is_warned_of(start_stub: StartStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that burns 8 ms on each request cannot send 200 a second, and says so."""
    feed = Answer.feed

    def slow(self: Answer, data: bytes, now_s: float) -> None:
        end_s = time.perf_counter() + 0.008
        while time.perf_counter() < end_s:
            pass
        feed(self, data, now_s)

    monkeypatch.setattr(Answer, "feed", slow)
    result = measure(start_stub(), Steady(rate=200), count=100, out=8)
    assert any("sent up to" in warning for warning in result["warnings"]), result["client"]
    assert any("read up to" in warning for warning in result["warnings"]), result["client"]


def test_a_limit_of_requests_in_flight_queues_in_the_client(start_stub: StartStub) -> None:
    """4 requests of about 200 ms each, all due at once, one at a time: waits of about 0, 200, 400 and 600 ms, which
    are no part of the latency, and no slowness of the client."""
    result = measure(start_stub("--ttft-ms", "143"), Steady(rate=1e9), count=4, out=1, concurrency=1)
    waits = [round(wait, 1) for wait in result["queue_times"]]
    assert waits == [0.0, 0.1, 0.3, 0.5]  # 143 + 171 + 200 ms
    assert result["p99_e2el_ms"] < 300
    assert result["client"]["max_send_lag_ms"] < 50
    assert result["max_concurrent_requests"] <= 4


def test_a_closed_loop_keeps_its_clients_busy(start_stub: StartStub) -> None:
    url = start_stub("--ttft-ms", "50", "--step-ms", "5")
    result = measure(url, None, count=30, out=4, concurrency=3)
    log = log_of(url)
    events = sorted([(each["read_s"], 1) for each in log] + [(each["written_s"][-1], -1) for each in log])
    flying, most = 0, 0
    for _, change in events:
        flying += change
        most = max(most, flying)
    assert most == 3
    assert (result["request_rate"], result["max_concurrency"], result["completed"]) == ("inf", 3, 30)
    assert max(result["queue_times"]) < 0.05


def test_a_result_has_the_keys_of_vllms(start_stub: StartStub) -> None:
    result = measure(start_stub(), Steady(rate=100), count=3, out=2)
    assert set(VLLM_KEYS.split()) <= set(result)
    assert result["generated_texts"] == [" t0 t1"] * 3
    assert result["environment"]["python"]
    assert result["workload"]["data"]["inputs"]["rule"] == "around"
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (STATUS_500, "HTTP 500: .*as asked for"),
        (ERROR_EVENT, "broken inside"),
        (CUT_OFF, "."),
        (NO_DONE, r"without \[DONE\]"),
    ],
)
def test_requests_that_fail_are_counted_apart(start_stub: StartStub, fault: int, words: str) -> None:
    url = start_stub()

    async def drive() -> Any:
        async with Client(url) as client:
            asks = [asked([fault] * 4, 3), asked([50] * 4, 3)]
            send = sender(client, Asking(endpoint=Endpoint.COMPLETIONS, model="stub-model"), asks)
            return await Load(send, [4, 4], Live(total=2), 2).closed()

    bad, good = uvloop.run(drive())
    assert re.search(words, bad.error), bad.error
    assert good.ok
    assert good.output_tokens == 3


def test_a_server_that_is_not_there(start_stub: StartStub) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9"):
        measure("http://127.0.0.1:9", Steady(rate=1), count=1, out=1)
    with pytest.raises(ConfigError, match="http://"):
        measure("127.0.0.1:9", Steady(rate=1), count=1, out=1)


def test_a_first_request_that_fails_ends_the_run(start_stub: StartStub, tmp_path: Any) -> None:
    data = RandomTokens(inputs=Lengths(tokens=4), outputs=Lengths(tokens=2), low_id=STATUS_500, high_id=STATUS_500 + 1)
    options = WorkloadOptions(data=data, arrivals=Steady(rate=1), count=2)
    with pytest.raises(ConfigError, match="the first request failed: HTTP 500"):
        uvloop.run(run(Target(url=start_stub()), options, slo_ms={}, facts={}))
