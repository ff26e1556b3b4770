"""Whether the client measured the server, or itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from baton.bench.sample import Sample

_PROBE_S = 0.02
_LATE_MS = 10.0
_BUSY = 0.8
_FEWEST = 20
_GROWTH, _GROWTH_MS = 2.0, 50.0


@dataclass(slots=True)
class Watch:
    """Over one run. late_s: how much later than asked for the event loop woke a sleeper; cpu_s: of this process."""

    late_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    wall_s: float = 0.0


@asynccontextmanager
async def watching() -> AsyncIterator[Watch]:
    """Watch this process and its event loop. The figures are complete behind the block."""
    watch = Watch()
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    probe = asyncio.create_task(_probe(watch))
    try:
        yield watch
    finally:
        probe.cancel()
        watch.cpu_s = time.process_time() - cpu_s
        watch.wall_s = time.perf_counter() - wall_s


async def _probe(watch: Watch) -> None:
    while True:
        before_s = time.perf_counter()
        await asyncio.sleep(_PROBE_S)
        watch.late_s.append(max(0.0, time.perf_counter() - before_s - _PROBE_S))


def client_figures(watch: Watch, samples: Sequence[Sample]) -> dict[str, float]:
    """The client's own part: share of a core, lateness of sending and of reading (ms)."""
    lag_s = [sample.lag_s for sample in samples] or [0.0]
    late_s = watch.late_s or [0.0]
    return {
        "cpu_share": watch.cpu_s / watch.wall_s if watch.wall_s else 0.0,
        "p50_send_lag_ms": float(np.percentile(lag_s, 50)) * 1e3,
        "p99_send_lag_ms": float(np.percentile(lag_s, 99)) * 1e3,
        "max_send_lag_ms": max(lag_s) * 1e3,
        "p99_loop_lag_ms": float(np.percentile(late_s, 99)) * 1e3,
    }


def client_warnings(figures: dict[str, float]) -> list[str]:
    """What makes the run's figures the client's rather than the server's."""
    found = []
    if figures["cpu_share"] > _BUSY:
        found.append(f"the client used {figures['cpu_share']:.0%} of its core: it is the bottleneck; lower the rate")
    if figures["p99_send_lag_ms"] > _LATE_MS:
        found.append(
            f"requests were sent up to {figures['p99_send_lag_ms']:.0f} ms late (p99): the client, or its machine, "
            "is too slow"
        )
    if figures["p99_loop_lag_ms"] > _LATE_MS:
        found.append(
            f"the client read up to {figures['p99_loop_lag_ms']:.0f} ms late (p99): its machine is too busy; "
            "latencies are that much too long"
        )
    return found


def queue_warnings(samples: Sequence[Sample]) -> list[str]:
    """Whether TTFT grew from the first quarter of requests to the last: the queue of a server that cannot keep up."""
    ttft_ms = [sample.ttft_s * 1e3 for sample in samples if sample.ok]
    if len(ttft_ms) < _FEWEST:
        return []
    quarter = len(ttft_ms) // 4
    first, last = float(np.median(ttft_ms[:quarter])), float(np.median(ttft_ms[-quarter:]))
    if last < _GROWTH * first or last - first < _GROWTH_MS:
        return []
    return [
        f"TTFT grew from {first:.0f} to {last:.0f} ms (medians of the first and the last quarter of requests): the "
        "server does not keep up, and its latencies depend on how long the run is"
    ]
