"""Figures of one engine as its server sees them: per request, per token, and for /metrics, /stats and --log-stats.

Tokens and admissions come by `ServerMetrics.on_output` (subscribe it with `EngineClient.on_output`), timed by the
engine. The HTTP layer calls `start` when it submits a request, `RequestMetrics.finish` when it ends one itself
(disconnect, deadline, stop string, error), and `rejected` when the queue is full. One thread: the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from baton.core.request import FinishReason, Request, SequenceDelta
from baton.obs.figures import EngineFigures
from baton.obs.handoff import HandoffFigures
from baton.obs.metrics import Exposition
from baton.obs.timeline import Timeline
from baton.obs.trace import RequestTracer
from baton.obs.window import Rate, Recent
from baton.wire.engine import EngineInfo, Output

RATE_WINDOW_S = 10
LATENCY_WINDOW_S = 300.0
_RANKS = (50, 90, 99)


class RequestMetrics:
    """One live request. Made by `ServerMetrics.start`."""

    __slots__ = ("_cached", "_ended", "_headers", "_landed", "_live", "_metrics", "_prefilled", "_request")

    def __init__(
        self, metrics: ServerMetrics, request: Request, arrival_s: float, headers: Mapping[str, str] | None
    ) -> None:
        self._metrics = metrics
        self._request = request
        self._headers = headers
        self._cached = 0
        self._prefilled = False
        self._landed = False
        self._live = {index: Timeline(arrival_s=arrival_s) for index in range(request.params.n)}
        self._ended: list[Timeline] = []

    def finish(self, reason: FinishReason, index: int | None = None, now: float | None = None) -> None:
        """The server ends one sequence, or all that are left. What has ended already is left alone.

        Args:
            reason: STOP for a stop string, ABORT for a disconnect or a deadline, ERROR for a failure.
            now: seconds since the epoch; the present moment when not given.
        """
        now = time.time() if now is None else now
        for each in list(self._live) if index is None else [index]:
            self._end(each, reason, now)

    def admitted(self, now: float) -> None:
        """The request left the engine's queue (seconds since the epoch). `on_output` calls this."""
        for timeline in self._live.values():
            if timeline.admitted_s is None:
                timeline.admitted_s = now

    def landed(self) -> None:
        """The KV of its prompt came from another engine. `on_output` calls this."""
        self._landed = True

    def delta(self, delta: SequenceDelta, now: float) -> None:
        """Count what a step brought. `on_output` calls this."""
        timeline = self._live.get(delta.index)
        if timeline is None:
            return
        count = len(delta.token_ids)
        if count:
            self._cached = max(self._cached, delta.num_cached_tokens)
            self._tokens(timeline, count, now)
        if delta.finish_reason is not None:
            self._end(delta.index, delta.finish_reason, now)

    def _tokens(self, timeline: Timeline, count: int, now: float) -> None:
        metrics, figures = self._metrics, self._metrics.figures
        figures.generation_tokens += count
        metrics.generation_rate.add(count, now)
        if timeline.last_token_s is None:
            self._first_token(timeline, now)
        else:
            figures.inter_token.observe(max(0.0, now - timeline.last_token_s) / count, count)
        timeline.last_token_s = now
        timeline.num_tokens += count

    def _first_token(self, timeline: Timeline, now: float) -> None:
        metrics, figures = self._metrics, self._metrics.figures
        timeline.first_token_s = now
        first = timeline.first_token
        assert first is not None
        figures.first_token.observe(first)
        metrics.recent_first_token.add(first, now)
        if not self._prefilled:
            self._prefilled = True
            num_tokens = len(self._request.prompt_token_ids)
            num_received = num_tokens - self._cached if self._landed else 0
            num_computed = num_tokens - self._cached - num_received
            figures.prompt_tokens += num_tokens
            figures.cached_tokens += self._cached
            figures.received_tokens += num_received
            figures.prefill_computed.observe(num_computed)
            metrics.prompt_rate.add(num_computed, now)

    def _end(self, index: int, reason: FinishReason, now: float) -> None:
        timeline = self._live.pop(index, None)
        if timeline is None:
            return
        timeline.finished_s = now
        self._ended.append(timeline)
        figures = self._metrics.figures
        figures.success[reason] += 1
        figures.generation.observe(timeline.num_tokens)
        for histogram, seconds in (
            (figures.whole, timeline.whole),
            (figures.queue, timeline.queue),
            (figures.prefill, timeline.prefill),
            (figures.decode, timeline.decode),
            (figures.inference, timeline.inference),
            (figures.per_token, timeline.per_token),
        ):
            if seconds is not None:
                histogram.observe(seconds)
        if timeline.per_token is not None:
            self._metrics.recent_per_token.add(timeline.per_token, now)
        if not self._live:
            self._close()

    def _close(self) -> None:
        request, figures = self._request, self._metrics.figures
        figures.prompt.observe(len(request.prompt_token_ids))
        figures.max_generation.observe(max(timeline.num_tokens for timeline in self._ended))
        figures.params_n.observe(request.params.n)
        if request.params.max_tokens is not None:
            figures.params_max_tokens.observe(request.params.max_tokens)
        self._metrics.closed(request, self._ended, self._headers)


class ServerMetrics:
    """Everything a server counts about one engine.

    Args:
        info: of the engine, once it is ready.
        model_name: the label `model_name`: the first served name.
        tracer: gets one span a finished request.
    """

    def __init__(
        self, info: EngineInfo, model_name: str, *, tracer: RequestTracer | None = None, now: float | None = None
    ) -> None:
        start = time.time() if now is None else now
        self.info = info
        self.model_name = model_name
        self.figures = EngineFigures(info.max_model_len, hands_over=info.peer is not None)
        self.prompt_rate = Rate(RATE_WINDOW_S, start)
        self.generation_rate = Rate(RATE_WINDOW_S, start)
        self.recent_first_token = Recent(LATENCY_WINDOW_S)
        self.recent_per_token = Recent(LATENCY_WINDOW_S)
        self.recent_exposed = Recent(LATENCY_WINDOW_S)
        self._tracer = tracer
        self._requests: dict[str, RequestMetrics] = {}
        self._taking: dict[str, RequestMetrics] = {}  # by transfer_id
        self._exposition = Exposition(
            self.figures,
            model_name=model_name,
            cache_config={
                "block_size": str(info.block_tokens),
                "num_gpu_blocks": str(info.num_blocks),
                "cache_dtype": info.dtype,
            },
        )

    @property
    def num_live(self) -> int:
        """Requests started and not ended."""
        return len(self._requests)

    def start(
        self, request: Request, *, arrival_s: float | None = None, headers: Mapping[str, str] | None = None
    ) -> RequestMetrics:
        """A request is submitted to the engine.

        Args:
            arrival_s: when it came in, seconds since the epoch; the present moment when not given.
            headers: of the HTTP request, with lower-case names; only the W3C trace context is read.
        """
        arrival_s = time.time() if arrival_s is None else arrival_s
        live = RequestMetrics(self, request, arrival_s, headers)
        self._requests[request.request_id] = live
        if request.handoff is not None and not request.handoff.gives:
            self._taking[request.handoff.transfer_id] = live
        return live

    def rejected(self, reason: str = "max_num_queued_reqs") -> None:
        """A request was turned away because the queue is full."""
        self.figures.rejections[reason] += 1

    def on_output(self, output: Output) -> None:
        """Take what one step of the engine brought. Deltas of unknown requests are ignored."""
        self.figures.stats = output.stats
        if output.num_tokens:
            self.figures.step_tokens.observe(output.num_tokens)
        if self.figures.handoff is not None:
            self._handoffs(output, self.figures.handoff)
        for admitted in output.admitted:
            live = self._requests.get(admitted.request_id)
            if live is not None:
                live.admitted(admitted.time_s)
        for delta in output.deltas:
            live = self._requests.get(delta.request_id)
            if live is not None:
                live.delta(delta, output.time_s)

    def _handoffs(self, output: Output, figures: HandoffFigures) -> None:
        if output.transfer_stats is not None:
            figures.stats = output.transfer_stats
        for record in output.transfers:
            figures.observe(record)
            self.recent_exposed.add(record.exposed_s, output.time_s)
        for moment in output.moments:
            live = self._taking.get(moment.transfer_id)
            if live is not None and moment.what == "reserve":
                live.admitted(moment.time_s)
            elif live is not None and moment.what == "landed":
                live.landed()

    def closed(self, request: Request, ended: list[Timeline], headers: Mapping[str, str] | None) -> None:
        """All sequences of a request ended. `RequestMetrics` calls this."""
        live = self._requests.pop(request.request_id, None)
        handoff = request.handoff
        if handoff is not None and live is not None and self._taking.get(handoff.transfer_id) is live:
            del self._taking[handoff.transfer_id]
        if self._tracer is not None:
            self._tracer.record(request, ended, model_name=self.model_name, headers=headers or {})

    def exposition(self) -> bytes:
        """The body of GET /metrics; its type is `obs.metrics.CONTENT_TYPE`."""
        return self._exposition.render()

    def snapshot(self, now: float | None = None) -> dict[str, object]:
        """The body of GET /stats: figures of this moment. Rates over 10 s, latencies (ms) over five minutes."""
        now = time.time() if now is None else now
        figures, stats = self.figures, self.figures.stats
        return {
            "running": stats.num_running,
            "waiting": stats.num_waiting,
            "kv_use": figures.kv_use,
            "prefix_hit_rate": figures.prefix_hit_rate,
            "prompt_tokens_per_s": self.prompt_rate.per_second(now),
            "generation_tokens_per_s": self.generation_rate.per_second(now),
            "ttft_ms": _milliseconds(self.recent_first_token, now),
            "tpot_ms": _milliseconds(self.recent_per_token, now),
            "requests_finished": sum(figures.success.values()),
        }

    def handoff_snapshot(self, now: float | None = None) -> dict[str, object] | None:
        """The figures behind `handoff` of GET /stats; None for an engine without a peer."""
        handoff, stats = self.figures.handoff, self.figures.stats
        if handoff is None:
            return None
        return {
            **msgspec.to_builtins(handoff.stats),
            "num_transfers": handoff.num_bytes.count,
            "num_pushed": handoff.num_pushed,
            "num_fallbacks": stats.num_fallbacks,
            "pinned_blocks": stats.pinned_blocks,
            "num_bytes": round(handoff.num_bytes.total),
            "early_share": handoff.early_share,
            "exposed_ms": _milliseconds(self.recent_exposed, time.time() if now is None else now),
        }


def _milliseconds(recent: Recent, now: float) -> dict[str, float] | None:
    values = recent.percentiles(_RANKS, now)
    return None if values is None else {f"p{rank}": value * 1e3 for rank, value in zip(_RANKS, values, strict=True)}
