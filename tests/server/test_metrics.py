"""What a server counts, from the engine's outputs alone and from what the HTTP layer ends itself."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable

import pytest

from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.sampling import SamplingParams
from baton.core.stats import SchedulerStats
from baton.obs.histogram import Histogram
from baton.server.metrics import ServerMetrics
from baton.wire.engine import Admitted, EngineInfo, Output

NOW = 1_000_000.0
STATS = SchedulerStats(
    num_running=2,
    num_waiting=5,
    num_preemptions=1,
    used_blocks=10,
    total_blocks=40,
    quarantined_blocks=0,
    prefix_query_tokens=80,
    prefix_hit_tokens=20,
)


def server() -> ServerMetrics:
    info = EngineInfo(
        model="/m",
        tokenizer="",
        architecture="LlamaForCausalLM",
        dtype="float32",
        device="cpu",
        fingerprint="",
        eos_token_ids=frozenset(),
        vocab_size=100,
        max_model_len=1000,
        max_num_seqs=8,
        block_tokens=16,
        num_blocks=40,
    )
    return ServerMetrics(info, "tiny", now=NOW)


def request(request_id: str = "a", n: int = 1, prompt: int = 50, max_tokens: int = 20) -> Request:
    params = SamplingParams(n=n, max_tokens=max_tokens)
    return Request(request_id=request_id, prompt_token_ids=(1,) * prompt, params=params)


def delta(
    count: int = 1, finish: FinishReason | None = None, *, request_id: str = "a", index: int = 0, cached: int = 0
) -> SequenceDelta:
    return SequenceDelta(
        request_id=request_id, index=index, token_ids=(7,) * count, finish_reason=finish, num_cached_tokens=cached
    )


def output(
    at: float, *deltas: SequenceDelta, admitted: Iterable[str] = (), num_tokens: int = 1, stats: SchedulerStats = STATS
) -> Output:
    """A step committed `at` seconds after NOW; admissions a quarter of a second before it."""
    entries = tuple(Admitted(request_id=name, time_s=NOW + at - 0.25) for name in admitted)
    return Output(deltas=deltas, stats=stats, time_s=NOW + at, num_tokens=num_tokens, admitted=entries)


def seen(histogram: Histogram) -> tuple[int, float]:
    return histogram.count, pytest.approx(histogram.total)  # type: ignore[return-value]


def test_the_life_of_one_request() -> None:
    metrics = server()
    metrics.start(request(), arrival_s=NOW)
    assert metrics.num_live == 1
    metrics.on_output(output(1.0, delta(cached=16), admitted=["a"], num_tokens=34))
    metrics.on_output(output(1.5, delta()))
    metrics.on_output(output(2.5, delta(finish=FinishReason.STOP)))
    figures = metrics.figures
    assert metrics.num_live == 0
    assert (figures.prompt_tokens, figures.cached_tokens, figures.generation_tokens) == (50, 16, 3)
    assert {reason.value: n for reason, n in figures.success.items()} == {
        "stop": 1,
        "length": 0,
        "abort": 0,
        "error": 0,
    }
    assert seen(figures.first_token) == (1, 1.0)
    assert seen(figures.inter_token) == (2, 1.5)
    assert seen(figures.per_token) == (1, 0.75)
    assert seen(figures.queue) == (1, 0.75)
    assert seen(figures.prefill) == (1, 0.25)
    assert seen(figures.decode) == (1, 1.5)
    assert seen(figures.inference) == (1, 1.75)
    assert seen(figures.whole) == (1, 2.5)
    assert seen(figures.prompt) == (1, 50)
    assert seen(figures.prefill_computed) == (1, 34)
    assert seen(figures.generation) == seen(figures.max_generation) == (1, 3)
    assert seen(figures.params_n) == (1, 1)
    assert seen(figures.params_max_tokens) == (1, 20)
    assert seen(figures.step_tokens) == (3, 36)


def test_several_sequences_share_one_prompt() -> None:
    metrics = server()
    metrics.start(request(n=2), arrival_s=NOW)
    metrics.on_output(output(1.0, delta(index=0), delta(index=1), admitted=["a"]))
    metrics.on_output(output(2.0, delta(finish=FinishReason.LENGTH, index=0), delta(index=1)))
    assert metrics.num_live == 1
    metrics.on_output(output(3.0, delta(finish=FinishReason.LENGTH, index=1)))
    figures = metrics.figures
    assert metrics.num_live == 0
    assert (figures.prompt_tokens, figures.generation_tokens, figures.success[FinishReason.LENGTH]) == (50, 5, 2)
    assert seen(figures.generation) == (2, 5) and seen(figures.max_generation) == (1, 3)
    assert seen(figures.prompt) == (1, 50) and seen(figures.params_n) == (1, 2)
    assert seen(figures.first_token) == (2, 2.0) and seen(figures.whole) == (2, 5.0)


def test_what_the_server_ends_is_counted_once() -> None:
    metrics = server()
    live = metrics.start(request(n=2), arrival_s=NOW)
    metrics.on_output(output(1.0, delta(index=0), delta(index=1), admitted=["a"]))
    live.finish(FinishReason.STOP, index=0, now=NOW + 1.5)
    metrics.on_output(output(2.0, delta(index=0, finish=FinishReason.STOP), delta(index=1)))
    live.finish(FinishReason.ABORT, now=NOW + 3.0)
    live.finish(FinishReason.ERROR, now=NOW + 4.0)
    metrics.on_output(output(5.0, delta(index=1)))
    figures = metrics.figures
    assert metrics.num_live == 0
    assert {reason.value: n for reason, n in figures.success.items()} == {
        "stop": 1,
        "length": 0,
        "abort": 1,
        "error": 0,
    }
    assert figures.generation_tokens == 3  # nothing after its sequence ended
    assert seen(figures.whole) == (2, 4.5)


def test_a_request_that_ends_in_the_queue_has_only_a_whole() -> None:
    metrics = server()
    metrics.start(request(), arrival_s=NOW).finish(FinishReason.ABORT, now=NOW + 2.0)
    figures = metrics.figures
    assert seen(figures.whole) == (1, 2.0) and seen(figures.generation) == (1, 0)
    for histogram in (figures.queue, figures.prefill, figures.decode, figures.per_token, figures.first_token):
        assert histogram.count == 0
    assert figures.prompt_tokens == 0


def test_several_tokens_of_one_step_share_the_time_since_the_last() -> None:
    metrics = server()
    metrics.start(request(), arrival_s=NOW)
    metrics.on_output(output(1.0, delta(), admitted=["a"]))
    metrics.on_output(output(2.0, delta(4)))
    assert list(metrics.figures.inter_token.cumulative())[6:8] == [(0.2, 0), (0.3, 4)]  # 4 times 0.25 s
    assert seen(metrics.figures.inter_token) == (4, 1.0)


def test_a_preempted_request_keeps_its_first_admission() -> None:
    metrics = server()
    metrics.start(request(), arrival_s=NOW)
    metrics.on_output(output(1.0, admitted=["a"]))
    metrics.on_output(output(5.0, delta(finish=FinishReason.LENGTH), admitted=["a"]))
    assert seen(metrics.figures.queue) == (1, 0.75)


def test_outputs_of_unknown_requests_change_only_the_schedulers_figures() -> None:
    metrics = server()
    metrics.on_output(output(1.0, delta(request_id="ghost"), admitted=["ghost"], num_tokens=0))
    figures = metrics.figures
    assert figures.generation_tokens == figures.first_token.count == figures.step_tokens.count == 0
    assert (figures.stats, figures.kv_use, figures.prefix_hit_rate) == (STATS, 0.25, 0.25)


def test_a_snapshot_is_of_this_moment() -> None:
    metrics = server()
    empty = metrics.snapshot(NOW)
    assert (empty["ttft_ms"], empty["tpot_ms"], empty["prefix_hit_rate"], empty["kv_use"]) == (None, None, None, 0.0)
    for place in range(100):
        name = str(place)
        metrics.start(request(name), arrival_s=NOW)
        first = (place + 1) / 1000
        metrics.on_output(output(first, delta(request_id=name), admitted=[name]))
        metrics.on_output(output(first + 0.01, delta(request_id=name, finish=FinishReason.LENGTH)))
    now = metrics.snapshot(NOW + 10)
    assert now["ttft_ms"] == pytest.approx({"p50": 50.0, "p90": 90.0, "p99": 99.0}, abs=1e-3)
    assert now["tpot_ms"] == pytest.approx({"p50": 10.0, "p90": 10.0, "p99": 10.0}, abs=1e-3)
    assert (now["running"], now["waiting"], now["requests_finished"]) == (2, 5, 100)
    later = metrics.snapshot(NOW + 3600)
    assert (later["generation_tokens_per_s"], later["ttft_ms"], later["requests_finished"]) == (0.0, None, 100)


def test_rates_are_over_ten_seconds() -> None:
    metrics = server()
    metrics.start(request(), arrival_s=NOW)
    metrics.on_output(output(15.0, delta(40, cached=10), admitted=["a"]))
    found = metrics.snapshot(NOW + 20)
    assert (found["generation_tokens_per_s"], found["prompt_tokens_per_s"]) == (4.0, 4.0)  # 40 of 50 were computed


def test_turned_away_requests_are_counted_by_reason() -> None:
    metrics = server()
    metrics.rejected()
    metrics.rejected()
    line = 'vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 2.0'
    assert line in metrics.exposition().decode()


class Spans:
    """Takes the place of a RequestTracer."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, str]] = []

    def record(self, request: Request, ended: list[object], *, model_name: str, headers: dict[str, str]) -> None:
        self.seen.append((request.request_id, len(ended), headers.get("traceparent", "")))


def test_a_span_is_recorded_when_the_last_sequence_ended() -> None:
    spans = Spans()
    metrics = ServerMetrics(server().info, "tiny", tracer=spans)  # type: ignore[arg-type]
    live = metrics.start(request(n=2), arrival_s=NOW, headers={"traceparent": "00-1-2-01"})
    live.finish(FinishReason.STOP, index=1)
    assert spans.seen == []
    live.finish(FinishReason.ABORT)
    live.finish(FinishReason.ABORT)
    assert spans.seen == [("a", 2, "00-1-2-01")]


@pytest.mark.parametrize("seed", range(5))
def test_every_token_and_sequence_is_counted_whatever_the_order(seed: int) -> None:
    """Random lives with random ends; the sums are known from what was sent, nothing stays behind."""
    random_ = random.Random(seed)
    metrics = server()
    tokens = sequences = 0
    stats = STATS
    for place in range(60):
        name, n = str(place), random_.randint(1, 3)
        live = metrics.start(request(name, n=n), arrival_s=NOW + place)
        sequences += n
        open_, at = set(range(n)), place + random_.random()
        for _ in range(random_.randint(0, 12)):
            stats = dataclasses.replace(stats, num_running=random_.randint(0, 9))
            index = random_.randrange(n)
            end = random_.choice([None, None, None, FinishReason.STOP, FinishReason.LENGTH])
            count = random_.randint(0, 3)
            tokens += count if index in open_ else 0
            if end is not None:
                open_.discard(index)
            metrics.on_output(output(at, delta(count, end, request_id=name, index=index), admitted=[name], stats=stats))
            at += random_.random()
        live.finish(FinishReason.ABORT, now=NOW + at)
    figures = metrics.figures
    assert metrics.num_live == 0
    assert figures.generation_tokens == tokens == figures.generation.total
    assert sum(figures.success.values()) == sequences == figures.whole.count
    assert figures.inter_token.count + figures.first_token.count <= tokens
    assert figures.stats.num_running == stats.num_running
