"""Spans: names and attributes of vLLM's, moments and parents. Against OpenTelemetry's in-memory exporter."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading

import pytest

from baton.core.errors import ConfigError
from baton.core.request import Request
from baton.core.sampling import SamplingParams
from baton.obs.timeline import Timeline
from baton.obs.trace import RequestTracer, attributes, merge, otlp_tracer

REQUEST = Request(
    request_id="cmpl-1",
    prompt_token_ids=(5,) * 12,
    params=SamplingParams(n=2, temperature=0.5, top_p=0.9, max_tokens=30),
)
FIRST = Timeline(
    arrival_s=100.0, admitted_s=100.5, first_token_s=101.0, last_token_s=103.0, finished_s=103.0, num_tokens=4
)
SECOND = Timeline(
    arrival_s=100.0, admitted_s=100.5, first_token_s=101.5, last_token_s=104.0, finished_s=104.25, num_tokens=6
)
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"  # the example of W3C Trace Context


def test_sequences_of_a_request_are_merged() -> None:
    whole = merge([FIRST, SECOND])
    assert (whole.first_token_s, whole.last_token_s, whole.finished_s, whole.num_tokens) == (101.0, 104.0, 104.25, 10)


def test_attributes_are_vllms() -> None:
    assert attributes(REQUEST, merge([FIRST, SECOND]), "tiny") == {
        "gen_ai.request.id": "cmpl-1",
        "gen_ai.response.model": "tiny",
        "gen_ai.request.n": 2,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 30,
        "gen_ai.usage.prompt_tokens": 12,
        "gen_ai.usage.completion_tokens": 10,
        "gen_ai.latency.time_in_queue": 0.5,
        "gen_ai.latency.time_to_first_token": 1.0,
        "gen_ai.latency.e2e": 4.25,
        "gen_ai.latency.time_in_model_prefill": 0.5,
        "gen_ai.latency.time_in_model_decode": 3.0,
        "gen_ai.latency.time_in_model_inference": 3.5,
    }


def test_a_request_that_was_never_admitted_has_no_model_times() -> None:
    found = attributes(REQUEST, merge([Timeline(arrival_s=1.0, finished_s=2.0)]), "tiny")
    assert found["gen_ai.latency.e2e"] == 1.0 and found["gen_ai.usage.completion_tokens"] == 0
    assert not any("model_" in name or "queue" in name or "first_token" in name for name in found)


def test_the_span_lasts_from_arrival_to_end_and_has_the_callers_parent() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    provider = sdk.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(export.SimpleSpanProcessor(memory))
    tracer = RequestTracer(provider)
    tracer.record(REQUEST, [FIRST], model_name="tiny", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    tracer.record(REQUEST, [SECOND], model_name="tiny", headers={"traceparent": "nonsense"})
    child, root = memory.get_finished_spans()
    assert child.name == root.name == "llm_request" and child.kind.name == "SERVER"
    assert (child.start_time, child.end_time) == (100_000_000_000, 103_000_000_000)
    assert format(child.context.trace_id, "032x") == TRACE and format(child.parent.span_id, "016x") == PARENT
    assert child.attributes["gen_ai.usage.completion_tokens"] == 4
    assert root.parent is None and format(root.context.trace_id, "032x") != TRACE


class Collector(http.server.BaseHTTPRequestHandler):
    """Remembers what was posted."""

    got: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        self.got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_spans_are_posted_to_the_endpoint() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    got: list[tuple[str, bytes]] = []
    handler = type("Handler", (Collector,), {"got": got})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        tracer = otlp_tracer(f"http://127.0.0.1:{server.server_port}/v1/traces")
        tracer.record(REQUEST, [FIRST], model_name="tiny", headers={})
        tracer.close()
        server.shutdown()
        thread.join()
    assert [path for path, _ in got] == ["/v1/traces"]
    assert b"llm_request" in got[0][1] and b"cmpl-1" in got[0][1]


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"--otlp-traces-endpoint must be an http:// or https:// URL, got 'localhost:4318'"
    ):
        otlp_tracer("localhost:4318")


def test_without_the_packages_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from baton.core.errors import UserError\n"
        "from baton.obs.trace import otlp_tracer\n"
        "try: otlp_tracer('http://127.0.0.1:4318/v1/traces')\n"
        "except UserError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "--otlp-traces-endpoint needs OpenTelemetry: pip install 'baton[otel]'\n"
