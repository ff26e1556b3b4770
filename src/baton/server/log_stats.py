"""The line of --log-stats: what an engine did since the last one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from baton.obs.figures import EngineFigures
from baton.obs.log import get_logger

_log = get_logger(__name__)
INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Counters and gauges at one moment.

    Attributes:
        time_s: of a monotonic clock.
        prompt_tokens: computed so far, without those from the prefix cache.
        kv_use: share of KV blocks in use.
    """

    time_s: float
    prompt_tokens: int
    generation_tokens: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    num_running: int
    num_waiting: int
    kv_use: float


def moment(figures: EngineFigures, time_s: float) -> Moment:
    """The figures as they are now."""
    stats = figures.stats
    return Moment(
        time_s=time_s,
        prompt_tokens=figures.computed_tokens,
        generation_tokens=figures.generation_tokens,
        prefix_query_tokens=stats.prefix_query_tokens,
        prefix_hit_tokens=stats.prefix_hit_tokens,
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        kv_use=figures.kv_use,
    )


def stats_line(before: Moment, now: Moment) -> str | None:
    """One line about the time between two moments; None when nothing ran, waited or was produced.

    The hit rate is over the prompts admitted in between; it is left out when there was none. Counters that went back
    belong to a new engine process and count from zero.
    """
    prompt = _grown(before.prompt_tokens, now.prompt_tokens)
    generated = _grown(before.generation_tokens, now.generation_tokens)
    queried = _grown(before.prefix_query_tokens, now.prefix_query_tokens)
    if not (prompt or generated or queried or now.num_running or now.num_waiting):
        return None
    seconds = max(now.time_s - before.time_s, 1e-9)
    parts = [
        f"prompt {prompt / seconds:.1f} tokens/s",
        f"generation {generated / seconds:.1f} tokens/s",
        f"running {now.num_running}",
        f"waiting {now.num_waiting}",
        f"KV use {now.kv_use * 100:.1f}%",
    ]
    if queried:
        hits = _grown(before.prefix_hit_tokens, now.prefix_hit_tokens)
        parts.append(f"prefix hits {min(hits / queried, 1.0) * 100:.1f}%")
    return ", ".join(parts)


async def log_stats(
    figures: EngineFigures, *, interval_s: float = INTERVAL_S, log: Callable[[str], None] = _log.info
) -> None:
    """Log a line every `interval_s` seconds, if something happened. Runs until it is cancelled."""
    before = moment(figures, time.monotonic())
    while True:
        await asyncio.sleep(interval_s)
        now = moment(figures, time.monotonic())
        line = stats_line(before, now)
        if line is not None:
            log(line)
        before = now


def _grown(before: int, now: int) -> int:
    return now - before if now >= before else now
