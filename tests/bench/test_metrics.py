"""Figures against values worked out by hand, from the definitions in metrics.py."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from baton.bench.health import queue_warnings
from baton.bench.metrics import distribution, figures, num_within, parse_slo, peaks
from baton.bench.sample import Sample
from baton.core.errors import ConfigError


def sample(sent_s: float, *chunk_s: float, tokens: int | None = None, error: str = "", due_s: float = 0.0) -> Sample:
    return Sample(
        index=0,
        due_s=due_s,
        free_s=due_s,
        sent_s=sent_s,
        chunk_s=chunk_s,
        input_tokens=10,
        output_tokens=len(chunk_s) if tokens is None else tokens,
        error=error,
    )


FIRST = sample(0.5, 1.0, 1.2, 1.5, due_s=0.25)  # TTFT 500 ms, TPOT 250 ms, E2EL 1000 ms, queue 250 ms
SECOND = sample(1.0, 1.1, tokens=1, due_s=1.0)  # TTFT 100 ms, no TPOT, E2EL 100 ms
BUNDLED = sample(0.0, 0.3, 0.9, tokens=7)  # two pieces of 7 tokens: TPOT 100 ms, one gap of 600 ms
FAILED = sample(0.0, 0.1, error="HTTP 500")


def test_every_figure() -> None:
    found = figures([FIRST, SECOND, BUNDLED, FAILED], 2.0, {})
    assert (found["completed"], found["failed"]) == (3, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (30, 11)
    assert found["request_throughput"] == 1.5
    assert found["output_throughput"] == 5.5
    assert found["total_token_throughput"] == 20.5
    assert found["request_goodput"] is None
    assert found["mean_ttft_ms"] == pytest.approx((500 + 100 + 300) / 3)
    assert found["median_ttft_ms"] == pytest.approx(300)
    assert found["mean_tpot_ms"] == pytest.approx((250 + 100) / 2)
    assert found["mean_itl_ms"] == pytest.approx((200 + 300 + 600) / 3)
    assert found["median_e2el_ms"] == pytest.approx(900)
    assert found["mean_client_queue_time_ms"] == pytest.approx(250 / 3)
    assert found["mean_e2el_including_client_queue_ms"] == pytest.approx((1250 + 100 + 900) / 3)


def test_percentiles_are_interpolated_and_deviations_of_the_population() -> None:
    values = [0.1, 0.2, 0.3, 0.4]
    found = distribution("x", values)
    assert found["p90_x_ms"] == pytest.approx(370)  # rank 2.7 of 0..3
    assert found["p99_x_ms"] == pytest.approx(float(np.percentile(values, 99)) * 1e3)
    assert found["std_x_ms"] == pytest.approx(statistics.pstdev(values) * 1e3)


def test_nothing_is_null_not_zero() -> None:
    found = figures([FAILED], 1.0, {"ttft": 1})
    assert found["median_ttft_ms"] is None
    assert found["request_goodput"] == 0


def test_goodput_wants_every_limit_kept() -> None:
    samples = [FIRST, SECOND, BUNDLED]
    assert num_within(samples, {"ttft": 300}) == 2
    assert num_within(samples, {"ttft": 300, "e2el": 500}) == 1
    assert num_within(samples, {"tpot": 100.001}) == 2  # a single token has a TPOT of 0
    assert figures(samples, 2.0, {"ttft": 300})["request_goodput"] == 1.0


def test_peaks_count_by_seconds_since_the_first_request() -> None:
    found = peaks([FIRST, SECOND])  # from 0.5 s: pieces at +0.5, +0.7, +1.0 and +0.6
    assert found == {"max_output_tokens_per_s": 3.0, "max_concurrent_requests": 2}


def test_a_queue_that_grows_is_told() -> None:
    """A server that takes 2 requests a second, asked 4 a second: TTFT grows by 250 ms with each."""
    slow = [sample(0.25 * n, 0.5 * n + 0.5) for n in range(40)]
    (warning,) = queue_warnings(slow)
    assert "grew from 1625 to 9125 ms" in warning  # medians over requests 0 to 9 and 30 to 39
    steady = [sample(0.25 * n, 0.25 * n + 0.1 + 0.05 * (n % 3)) for n in range(40)]
    assert queue_warnings(steady) == queue_warnings(slow[:10]) == []


@pytest.mark.parametrize("term", ["ttft", "ttft:x", "ttft:0", "itl:5", "ttft:-1"])
def test_bad_limits(term: str) -> None:
    with pytest.raises(ConfigError, match="NAME:MILLISECONDS"):
        parse_slo([term])


def test_limits() -> None:
    assert parse_slo(["ttft:200", "tpot:50.5"]) == {"ttft": 200, "tpot": 50.5}
