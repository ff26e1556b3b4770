"""Result files with samples that are chosen, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from baton.bench.case import Case, RunName
from baton.bench.metrics import figures
from baton.bench.result import write
from baton.bench.sample import Sample


def result(ttft_ms: Sequence[float], *, tpot_ms: float = 10.0, failed: int = 0, **facts: Any) -> dict[str, Any]:
    """Of requests with these times to first token and 5 output tokens each."""
    samples = [
        Sample(
            index=index,
            due_s=0.0,
            free_s=0.0,
            sent_s=0.0,
            chunk_s=tuple((first + step * tpot_ms) / 1e3 for step in range(5)),
            input_tokens=100,
            output_tokens=5,
            error="HTTP 500" if index < failed else "",
        )
        for index, first in enumerate(ttft_ms)
    ]
    return {
        **figures(samples, 2.0, {}),
        "ttfts": [sample.ttft_s for sample in samples],
        "latencies": [sample.latency_s for sample in samples],
        "input_lens": [100] * len(samples),
        "output_lens": [5 if sample.ok else 0 for sample in samples],
        "errors": [sample.error for sample in samples],
        "request_rate": 1.0,
        **facts,
    }


def write_grid(folder: Path, *, factor: dict[str, float], qps: Sequence[float], inputs: Sequence[int]) -> None:
    """Three iterations of each case and mode; TTFT = factor of the mode times about the input length (ms)."""
    for mode, scale in factor.items():
        for rate in qps:
            for length in inputs:
                for iteration in range(3):
                    rng = np.random.default_rng([length, iteration])
                    name = RunName(
                        mode=mode,
                        case=Case(input_tokens=length, output_tokens=5, qps=rate),
                        iteration=iteration,
                    )
                    times = scale * length * rng.uniform(0.9, 1.1, size=40)
                    write(result(times.tolist(), tpot_ms=scale * 10, mode=mode), folder / f"{name}.json")
