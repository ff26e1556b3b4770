"""From samples to figures. Pure.

Definitions are those of `vllm bench serve` (0.32; vllm/benchmarks/serve.py::calculate_metrics), so that results of the
two can be laid side by side. Only requests that ended well count. Percentiles are interpolated linearly between ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from baton.bench.sample import Sample
from baton.core.errors import ConfigError

PERCENTILES = (25, 50, 75, 90, 95, 99)
SLO_NAMES = ("ttft", "tpot", "e2el")

Figures = dict[str, Any]


def figures(samples: Sequence[Sample], duration_s: float, slo_ms: Mapping[str, float]) -> Figures:
    """Counts, throughputs over `duration_s`, and distributions in milliseconds.

    Args:
        duration_s: from the start of the run to the end of its last request.
        slo_ms: limits by name (ttft, tpot, e2el); empty: no goodput.
    """
    good = [sample for sample in samples if sample.ok]
    num_input = sum(sample.input_tokens for sample in good)
    num_output = sum(sample.output_tokens for sample in good)
    return {
        "duration": duration_s,
        "completed": len(good),
        "failed": len(samples) - len(good),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(good) / duration_s,
        "request_goodput": num_within(good, slo_ms) / duration_s if slo_ms else None,
        "output_throughput": num_output / duration_s,
        "total_token_throughput": (num_input + num_output) / duration_s,
        **peaks(good),
        **distribution("ttft", [sample.ttft_s for sample in good]),
        **distribution("tpot", [sample.tpot_s for sample in good if sample.output_tokens > 1]),
        **distribution("itl", [gap for sample in good for gap in sample.gaps_s]),
        **distribution("e2el", [sample.latency_s for sample in good]),
        **distribution("client_queue_time", [sample.queue_s for sample in good]),
        **distribution("e2el_including_client_queue", [sample.latency_s + sample.queue_s for sample in good]),
    }


def distribution(name: str, values_s: Sequence[float]) -> Figures:
    """mean_, median_, std_ (of the population) and pNN_ of `name`, in ms; None where there are no values."""
    keys = [f"mean_{name}_ms", f"median_{name}_ms", f"std_{name}_ms", *(f"p{rank}_{name}_ms" for rank in PERCENTILES)]
    if not values_s:
        return dict.fromkeys(keys)
    values = np.asarray(values_s) * 1e3
    found = [values.mean(), np.median(values), values.std(), *np.percentile(values, PERCENTILES)]
    return {key: float(value) for key, value in zip(keys, found, strict=True)}


def num_within(samples: Sequence[Sample], slo_ms: Mapping[str, float]) -> int:
    """Requests that keep every limit; one token has a TPOT of 0."""

    def within(sample: Sample) -> bool:
        found = {"ttft": sample.ttft_s, "tpot": sample.tpot_s, "e2el": sample.latency_s}
        return all(found[name] * 1e3 <= limit for name, limit in slo_ms.items())

    return sum(within(sample) for sample in samples)


def peaks(samples: Sequence[Sample]) -> Figures:
    """Most pieces that came, and most requests that were in flight, in any second since the first was sent."""
    if not samples:
        return {"max_output_tokens_per_s": 0.0, "max_concurrent_requests": 0}
    start_s = min(sample.sent_s for sample in samples)
    num_seconds = math.ceil(max(sample.end_s for sample in samples) - start_s) + 1
    pieces, flying = np.zeros(num_seconds), np.zeros(num_seconds)
    for sample in samples:
        for at_s in sample.chunk_s:
            pieces[int(at_s - start_s)] += 1
        flying[int(sample.sent_s - start_s) : int(sample.end_s - start_s) + 1] += 1
    return {"max_output_tokens_per_s": float(pieces.max()), "max_concurrent_requests": int(flying.max())}


def parse_slo(terms: Sequence[str]) -> dict[str, float]:
    """["ttft:200", "tpot:50"] to milliseconds by name.

    Raises:
        ConfigError: another name, or no positive number.
    """
    limits: dict[str, float] = {}
    for term in terms:
        name, _, number = term.partition(":")
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if name not in SLO_NAMES or not limit > 0:
            raise ConfigError(f"goodput {term!r} must be NAME:MILLISECONDS with NAME one of {', '.join(SLO_NAMES)}")
        limits[name] = limit
    return limits
