"""Figures of a scheduler and its cache at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """Gauges now, and counters since the start (num_preemptions, prefix_*: first admissions only)."""

    num_running: int
    num_waiting: int
    num_preemptions: int
    used_blocks: int
    total_blocks: int
    quarantined_blocks: int
    prefix_query_tokens: int
    prefix_hit_tokens: int


EMPTY = SchedulerStats(
    num_running=0,
    num_waiting=0,
    num_preemptions=0,
    used_blocks=0,
    total_blocks=0,
    quarantined_blocks=0,
    prefix_query_tokens=0,
    prefix_hit_tokens=0,
)
"""Before the engine said anything."""
