"""Figures in Prometheus's text format; an engine's under vLLM's names, types and labels (checked against 0.32).

What vLLM does not measure about hand-offs is under `baton_handoff_`. An engine without a peer shows nothing of them.

The only file that imports prometheus_client. Nothing is kept in the library's global registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from baton.obs.family import Family
from baton.obs.figures import EngineFigures
from baton.obs.handoff import NOTICE_FAILURE, HandoffFigures
from baton.obs.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LABELS = ("model_name", "engine")


class Exposition:
    """Renders the figures of one engine, and of this process.

    Args:
        cache_config: labels of vllm:cache_config_info.
        engine: index of the engine, the label `engine`.
    """

    def __init__(
        self, figures: EngineFigures, *, model_name: str, cache_config: Mapping[str, str], engine: str = "0"
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(figures, model_name, engine, cache_config))
        if figures.handoff is not None:
            self._registry.register(_HandoffCollector(figures, figures.handoff, (model_name, engine)))
        _add_process(self._registry)

    def render(self) -> bytes:
        """The text, as of now."""
        return generate_latest(self._registry)


class FamilyExposition:
    """Renders families of any origin.

    Args:
        families: asked anew for every rendering.
        process: show the figures of this process too.
    """

    def __init__(self, families: Callable[[], Iterable[Family]], *, process: bool = True) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_FamilyCollector(families))
        if process:
            _add_process(self._registry)

    def render(self) -> bytes:
        """The text, as of now."""
        return generate_latest(self._registry)


def _add_process(registry: CollectorRegistry) -> None:
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)


class _FamilyCollector(Collector):
    def __init__(self, families: Callable[[], Iterable[Family]]) -> None:
        self._families = families

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for family in self._families():
            if family.histograms:
                yield _histograms(family)
                continue
            kind = CounterMetricFamily if family.counts else GaugeMetricFamily
            metric = kind(family.name, family.help_text, labels=family.labels)
            for labels, value in family.values:
                metric.add_metric(labels, value)
            yield metric


class _EngineCollector(Collector):
    def __init__(self, figures: EngineFigures, model_name: str, engine: str, cache_config: Mapping[str, str]) -> None:
        self._figures = figures
        self._model_name = model_name
        self._labels = (model_name, engine)
        self._cache_config = {**cache_config, "engine": engine}

    def describe(self) -> list[Metric]:
        return []  # no two collectors of this registry share a name

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        yield from self._labelled()
        for name, help_text, histogram in self._histograms():
            yield _histogram(f"vllm:{name}", help_text, self._labels, histogram)

    def _gauges(self) -> Iterator[Metric]:
        figures = self._figures
        for name, help_text, value in (
            ("num_requests_running", "Sequences in the running batch.", figures.stats.num_running),
            ("num_requests_waiting", "Sequences in the queue.", figures.stats.num_waiting),
            ("kv_cache_usage_perc", "KV blocks in use; 1 is all of them.", figures.kv_use),
        ):
            yield _single(GaugeMetricFamily, f"vllm:{name}", help_text, self._labels, value)

    def _counters(self) -> Iterator[Metric]:
        figures, stats = self._figures, self._figures.stats
        for name, help_text, value in (
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_query_tokens),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_hit_tokens),
            ("num_preemptions", "Sequences put back into the queue for lack of blocks.", stats.num_preemptions),
            ("prompt_tokens", "Prompt tokens of prefilled requests.", figures.prompt_tokens),
            ("prompt_tokens_cached", "Of these, taken from the prefix cache.", figures.cached_tokens),
            ("generation_tokens", "Output tokens.", figures.generation_tokens),
        ):
            yield _single(CounterMetricFamily, f"vllm:{name}", help_text, self._labels, value)

    def _labelled(self) -> Iterator[Metric]:
        figures = self._figures
        success = CounterMetricFamily(
            "vllm:request_success", "Sequences by how they ended.", labels=(*_LABELS, "finished_reason")
        )
        for reason, count in figures.success.items():
            success.add_metric((*self._labels, reason.value), count)
        yield success
        source = CounterMetricFamily(
            "vllm:prompt_tokens_by_source", "Prompt tokens by where their KV came from.", labels=(*_LABELS, "source")
        )
        source.add_metric((*self._labels, "local_compute"), figures.computed_tokens)
        source.add_metric((*self._labels, "local_cache_hit"), figures.cached_tokens)
        if figures.handoff is not None:
            source.add_metric((*self._labels, "external_kv_transfer"), figures.received_tokens)
        yield source
        rejected = CounterMetricFamily(
            "vllm:admission_rejections", "Requests turned away at the queue's limit.", labels=("model_name", "reason")
        )
        for name, count in figures.rejections.items():
            rejected.add_metric((self._model_name, name), count)
        yield rejected
        info = GaugeMetricFamily("vllm:cache_config_info", "The KV cache.", labels=tuple(self._cache_config))
        info.add_metric(tuple(self._cache_config.values()), 1)
        yield info

    def _histograms(self) -> Iterator[tuple[str, str, Histogram]]:
        figures = self._figures
        yield "time_to_first_token_seconds", "Arrival to first token.", figures.first_token
        yield "inter_token_latency_seconds", "Between two tokens of a sequence.", figures.inter_token
        yield "request_time_per_output_token_seconds", "Mean of a sequence after its first token.", figures.per_token
        yield "e2e_request_latency_seconds", "Arrival to end.", figures.whole
        yield "request_queue_time_seconds", "Arrival to admission.", figures.queue
        yield "request_inference_time_seconds", "Admission to last token.", figures.inference
        yield "request_prefill_time_seconds", "Admission to first token.", figures.prefill
        yield "request_decode_time_seconds", "First token to last token.", figures.decode
        yield "request_prompt_tokens", "Prompt tokens of a request.", figures.prompt
        yield "request_generation_tokens", "Output tokens of a sequence.", figures.generation
        yield "request_max_num_generation_tokens", "Output tokens of a request's longest.", figures.max_generation
        yield "request_prefill_kv_computed_tokens", "Prompt tokens not cached.", figures.prefill_computed
        yield "request_params_n", "The parameter n.", figures.params_n
        yield "request_params_max_tokens", "The parameter max_tokens.", figures.params_max_tokens
        yield "iteration_tokens_total", "Tokens through the model in a step.", figures.step_tokens


class _HandoffCollector(Collector):
    def __init__(self, figures: EngineFigures, handoff: HandoffFigures, labels: tuple[str, str]) -> None:
        self._figures = figures
        self._handoff = handoff
        self._labels = labels

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for name, help_text, histogram in self._histograms():
            yield _histogram(name, help_text, self._labels, histogram)
        for name, help_text, value in self._counters():
            yield _single(CounterMetricFamily, name, help_text, self._labels, value)
        for name, help_text, value in self._gauges():
            yield _single(GaugeMetricFamily, f"baton_handoff_{name}", help_text, self._labels, value)
        failures = CounterMetricFamily(
            "baton_handoff_failures", "Transfers that failed, by kind of cause.", labels=(*_LABELS, "reason")
        )
        for reason, count in self._handoff.stats.failures.items():
            failures.add_metric((*self._labels, reason), count)
        yield failures

    def _histograms(self) -> Iterator[tuple[str, str, Histogram]]:
        handoff = self._handoff
        yield "vllm:nixl_xfer_time_seconds", "Posting to completion, all posts of a transfer.", handoff.wire
        yield "vllm:nixl_post_time_seconds", "Posting a transfer.", handoff.post
        yield "vllm:nixl_bytes_transferred", "Bytes of a transfer.", handoff.num_bytes
        yield "vllm:nixl_num_descriptors", "Descriptors of a transfer, neighbours merged.", handoff.num_descriptors
        yield "baton_handoff_exposed_seconds", "End of prefill, or ticket, to the last completion.", handoff.exposed
        yield "baton_handoff_early_share", "Share of bytes posted before prefill ended.", handoff.early

    def _counters(self) -> Iterator[tuple[str, str, int]]:
        stats, failures = self._handoff.stats, self._handoff.stats.failures
        yield "vllm:nixl_num_failed_transfers", "Transfers that failed.", sum(failures.values())
        yield "vllm:nixl_num_failed_notifications", "Of these, lost notices.", failures.get(NOTICE_FAILURE, 0)
        yield "vllm:nixl_num_kv_expired_reqs", "Leases that ended before a taker came.", stats.num_expired
        yield "vllm:nixl_num_notifications_after_expiry", "Messages about transfers that had ended.", stats.num_late
        yield "baton_handoff_late", "Messages about transfers that had ended, and foreign ones.", stats.num_late
        yield "baton_handoff_malformed", "Frames that were no authentic message.", stats.num_malformed
        yield "baton_handoff_dropped", "Frames that could not be sent to a peer.", stats.num_dropped
        yield "baton_handoff_fallbacks", "Requests that prefilled here after all.", self._figures.stats.num_fallbacks

    def _gauges(self) -> Iterator[tuple[str, str, int]]:
        stats = self._handoff.stats
        yield "waiting", "Reservations whose KV has not landed.", stats.num_waiting
        yield "unmatched", "Reservations that no prefill here knows yet.", stats.num_unmatched
        yield "leased", "Prompts kept for a taker.", stats.num_leased
        yield "in_flight", "Posted transfers.", stats.num_in_flight
        yield "pinned_blocks", "Blocks that a transfer owns.", self._figures.stats.pinned_blocks
        yield "quarantined", "Reservations whose giver was lost.", stats.num_quarantined
        yield "links", "Linked peers.", stats.num_links


def _single(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    help_text: str,
    labels: tuple[str, str],
    value: float,
) -> Metric:
    """A family of one value."""
    family = kind(name, help_text, labels=_LABELS)
    family.add_metric(labels, value)
    return family


def _histogram(name: str, help_text: str, labels: tuple[str, str], histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, help_text, labels=_LABELS)
    family.add_metric(labels, _buckets(histogram), histogram.total)
    return family


def _histograms(family: Family) -> Metric:
    metric = HistogramMetricFamily(family.name, family.help_text, labels=family.labels)
    for labels, histogram in family.histograms:
        metric.add_metric(labels, _buckets(histogram), histogram.total)
    return metric


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    return [("+Inf" if bound == float("inf") else str(float(bound)), count) for bound, count in histogram.cumulative()]
