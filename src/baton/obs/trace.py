"""One OpenTelemetry span a request, with the attribute names that vLLM gives its `llm_request` spans (0.32).

Needs the extra `otel`. No global tracer provider is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from baton.core.errors import ConfigError
from baton.core.request import Request
from baton.obs.timeline import Timeline

SPAN_NAME = "llm_request"
_SEND_S = 3  # a batch is given up after this, retries included; it also bounds how long the end of a server waits


class RequestTracer:
    """Sends spans by OTLP over HTTP, in the background.

    Args:
        provider: an OpenTelemetry TracerProvider; `otlp_tracer` makes one.
    """

    def __init__(self, provider: Any) -> None:
        try:
            from opentelemetry.trace import SpanKind
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigError(_MISSING) from error
        self._provider = provider
        self._tracer = provider.get_tracer("baton")
        self._propagator = TraceContextTextMapPropagator()
        self._kind = SpanKind.SERVER

    def record(
        self, request: Request, ended: Sequence[Timeline], *, model_name: str, headers: Mapping[str, str]
    ) -> None:
        """A request ended: one span from arrival to end, child of the caller's when `traceparent` says so."""
        whole = merge(ended)
        span = self._tracer.start_span(
            SPAN_NAME,
            context=self._propagator.extract(headers),
            kind=self._kind,
            start_time=_nanoseconds(whole.arrival_s),
            attributes=attributes(request, whole, model_name),
        )
        assert whole.finished_s is not None
        span.end(end_time=_nanoseconds(whole.finished_s))

    def close(self) -> None:
        """Send what is left. Blocks for up to 3 seconds when nobody listens at the endpoint."""
        self._provider.shutdown()


_MISSING = "--otlp-traces-endpoint needs OpenTelemetry: pip install 'baton[otel]'"


def otlp_tracer(endpoint: str) -> RequestTracer:
    """A tracer that posts to an OTLP/HTTP endpoint, such as http://127.0.0.1:4318/v1/traces.

    Raises:
        ConfigError: the extra `otel` is not installed, or the endpoint is no http(s) URL.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"--otlp-traces-endpoint must be an http:// or https:// URL, got {endpoint!r}")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(_MISSING) from error
    provider = TracerProvider(resource=Resource.create({"service.name": "baton"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=_SEND_S)))
    return RequestTracer(provider)


def merge(sequences: Sequence[Timeline]) -> Timeline:
    """The request as one: from its first event to its last, with the tokens of all sequences."""
    return Timeline(
        arrival_s=sequences[0].arrival_s,
        admitted_s=min((each.admitted_s for each in sequences if each.admitted_s is not None), default=None),
        first_token_s=min((each.first_token_s for each in sequences if each.first_token_s is not None), default=None),
        last_token_s=max((each.last_token_s for each in sequences if each.last_token_s is not None), default=None),
        finished_s=max((each.finished_s for each in sequences if each.finished_s is not None), default=None),
        num_tokens=sum(each.num_tokens for each in sequences),
    )


def attributes(request: Request, whole: Timeline, model_name: str) -> dict[str, str | int | float]:
    """What a span says. Intervals in seconds; those that never came are left out."""
    params = request.params
    values: dict[str, str | int | float | None] = {
        "gen_ai.request.id": request.request_id,
        "gen_ai.response.model": model_name,
        "gen_ai.request.n": params.n,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.usage.prompt_tokens": len(request.prompt_token_ids),
        "gen_ai.usage.completion_tokens": whole.num_tokens,
        "gen_ai.latency.time_in_queue": whole.queue,
        "gen_ai.latency.time_to_first_token": whole.first_token,
        "gen_ai.latency.e2e": whole.whole,
        "gen_ai.latency.time_in_model_prefill": whole.prefill,
        "gen_ai.latency.time_in_model_decode": whole.decode,
        "gen_ai.latency.time_in_model_inference": whole.inference,
    }
    return {name: value for name, value in values.items() if value is not None}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
