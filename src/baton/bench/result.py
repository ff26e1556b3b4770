"""The result of a run: as a file, read back, and in words."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from baton.bench.arrivals import Ramp, Steady
from baton.bench.bodies import Asking
from baton.bench.environment import environment
from baton.bench.health import client_warnings, queue_warnings
from baton.bench.metrics import figures
from baton.bench.sample import Sample
from baton.bench.scrape import EngineView, handoff_figures, mode_of, topology
from baton.bench.workload import WorkloadOptions
from baton.core.errors import ConfigError

Result = dict[str, Any]
"""Keys of `vllm bench serve --save-detailed` (0.32), and Baton's own behind them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All that a run has seen. before, after: engines around it; workload: `WorkloadOptions.facts`."""

    samples: Sequence[Sample]
    duration_s: float
    client: dict[str, float]
    before: Sequence[EngineView]
    after: Sequence[EngineView]
    asking: Asking
    options: WorkloadOptions
    workload: Mapping[str, Any]


def result_of(measured: Measured, slo_ms: Mapping[str, float], facts: Mapping[str, Any]) -> Result:
    """Figures, raw samples and circumstances in one value. facts: further entries; they win."""
    asking, engines = measured.asking, measured.after
    handoff = handoff_figures(measured.before, engines)
    found = figures(measured.samples, measured.duration_s, slo_ms)
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": asking.endpoint.backend,
        "backend": asking.endpoint.backend,
        "label": None,
        "model_id": asking.model,
        "tokenizer_id": None,
        "num_prompts": len(measured.samples),
        **_rates(measured.options),
        **found,
        **_detailed(measured.samples),
        "rtfx": 0.0,
        "mode": mode_of(handoff),
        "topology": topology(engines),
        "num_devices": sum(engine.num_devices for engine in engines) or 1,
        "seed": measured.options.seed,
        "workload": dict(measured.workload),
        "slo_ms": dict(slo_ms),
        "handoff": handoff,
        "engines": [{"name": engine.name, "role": engine.role, **engine.facts} for engine in engines],
        "client": measured.client,
        "warnings": _warnings(measured),
        "environment": environment(),
        **facts,
    }


def _rates(options: WorkloadOptions) -> dict[str, Any]:
    arrivals = options.arrivals
    rates: dict[str, Any] = {"request_rate": "inf", "burstiness": 1.0, "max_concurrency": options.max_concurrency}
    if isinstance(arrivals, Steady):
        rates["request_rate"] = "inf" if np.isinf(arrivals.rate) else arrivals.rate
        rates["burstiness"] = arrivals.burstiness
    elif isinstance(arrivals, Ramp):
        rates["burstiness"] = arrivals.burstiness
        rates |= {"ramp_up_strategy": arrivals.shape.value}
        rates |= {"ramp_up_start_rps": arrivals.start, "ramp_up_end_rps": arrivals.end}
    return rates


def _detailed(samples: Sequence[Sample]) -> dict[str, Any]:
    """One entry a request, in the order in which they were due; seconds."""
    return {
        "input_lens": [sample.input_tokens for sample in samples],
        "output_lens": [sample.output_tokens if sample.ok else 0 for sample in samples],
        "ttfts": [sample.ttft_s for sample in samples],
        "itls": [sample.gaps_s for sample in samples],
        "latencies": [sample.latency_s for sample in samples],
        "start_times": [sample.sent_s for sample in samples],
        "queue_times": [sample.queue_s for sample in samples],
        "generated_texts": [sample.text for sample in samples],
        "errors": [sample.error for sample in samples],
    }


def _warnings(measured: Measured) -> list[str]:
    samples = measured.samples
    failed = [sample for sample in samples if not sample.ok]
    found = [f"{len(failed)} of {len(samples)} requests failed; the first: {failed[0].error}"] if failed else []
    return [*found, *client_warnings(measured.client), *queue_warnings(samples)]


def write(result: Result, path: Path) -> None:
    """As JSON, whole or not at all: an interruption leaves no half file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(msgspec.json.encode(result) + b"\n")
    os.replace(part, path)


def read(path: Path) -> Result:
    """A result file.

    Raises:
        ConfigError: it cannot be read, or is none.
    """
    try:
        found = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no result file: {error}") from error
    if not isinstance(found, dict) or "duration" not in found:
        raise ConfigError(f"{path} is no result file: it has no duration")
    return found
