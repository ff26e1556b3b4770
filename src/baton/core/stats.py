"""Figures of a scheduler and its cache at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """Gauges now, and counters since the start (num_preemptions, num_fallbacks, prefix_*: first admissions only).

    Attributes:
        num_reserved: sequences that wait for another engine's KV, their blocks reserved.
        pinned_blocks: blocks that a transfer owns, alone or with a sequence.
        num_fallbacks: requests that were to get their KV from another engine and prefilled here.
    """

    num_running: int
    num_waiting: int
    num_preemptions: int
    used_blocks: int
    total_blocks: int
    quarantined_blocks: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    num_reserved: int = 0
    pinned_blocks: int = 0
    num_fallbacks: int = 0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStats:
    """Figures of a transfer thread: gauges now, counters since its start.

    Attributes:
        num_waiting: reservations sent, their KV not landed (taker).
        num_unmatched: reservations of takers that no prefill here knows yet (giver).
        num_leased: prompts kept for a taker that has not fetched them (giver).
        num_in_flight: posted transfers.
        num_quarantined: reservations whose giver was lost: their blocks stay pinned (taker).
        num_links: peers that are linked.
        num_expired: leases that ended (giver).
        num_late: messages about transfers that had ended, and foreign ones, dropped.
        num_malformed: frames that were no authentic message, dropped.
        num_dropped: frames that were not sent: the queue was full, or nobody was there.
        failures: transfers that failed, by kind of cause.
    """

    num_waiting: int = 0
    num_unmatched: int = 0
    num_leased: int = 0
    num_in_flight: int = 0
    num_quarantined: int = 0
    num_links: int = 0
    num_expired: int = 0
    num_late: int = 0
    num_malformed: int = 0
    num_dropped: int = 0
    failures: dict[str, int] = field(default_factory=dict)
