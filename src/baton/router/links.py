"""Traffic between prefill and decode workers: engines say how many bytes they moved, records say between whom."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

from baton.core.handoff import TransferMode
from baton.router.panel import FleetPanel
from baton.router.window import Link

_WINDOW_S = 10.0
_MOST = 64


class ByteRates:
    """Bytes a second of growing totals, over the last 10 s in which they were looked at. Moments of any one clock."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def rates(self, totals: Mapping[str, int], now: float) -> dict[str, float]:
        """A rate for each name that was there before; one that is gone, or began anew, is forgotten."""
        self._seen = {name: self._seen.get(name, deque()) for name in totals}
        return {
            name: rate for name, total in totals.items() if (rate := _rate(self._seen[name], total, now)) is not None
        }


def _rate(seen: deque[tuple[float, int]], total: int, now: float) -> float | None:
    if seen and total < seen[-1][1]:
        seen.clear()
    if not seen or now - seen[-1][0] >= 0.5:
        seen.append((now, total))
    while len(seen) > 2 and seen[0][0] < now - _WINDOW_S:
        seen.popleft()
    span_s = seen[-1][0] - seen[0][0]
    return (seen[-1][1] - seen[0][1]) / span_s if span_s > 0 else None


def moved_bytes(panel: FleetPanel) -> dict[str, int]:
    """Bytes that each worker posted so far: the giver in push, the taker in pull."""
    return {each.worker_id: int(each.handoff["num_bytes"]) for each in panel.workers if "num_bytes" in each.handoff}


def link_rows(
    counts: Mapping[Link, Mapping[str, int]], rates: Mapping[str, float], window_s: int
) -> list[dict[str, Any]]:
    """As JSON, the busiest first, at most 64.

    Args:
        counts: "transfers", "link_tokens" and "link_failures" of each link in the last `window_s`.
        rates: bytes a second of each worker that posts. Those of a worker with several links are shared out by the
            prompt tokens that went over each, and marked as an estimate.
    """
    posters = {link: _poster(link) for link in counts}
    tokens: defaultdict[str, int] = defaultdict(int)
    shares: defaultdict[str, int] = defaultdict(int)
    for link, poster in posters.items():
        tokens[poster] += counts[link].get("link_tokens", 0)
        shares[poster] += 1
    rows: list[dict[str, Any]] = []
    for (prefill, decode, mode), count in counts.items():
        poster = posters[prefill, decode, mode]
        share = count.get("link_tokens", 0) / (tokens[poster] or 1)
        rows.append(
            {
                "prefill": prefill,
                "decode": decode,
                "mode": mode,
                "window_s": window_s,
                "transfers": count.get("transfers", 0),
                "failures": count.get("link_failures", 0),
                "prompt_tokens": count.get("link_tokens", 0),
                "bytes_per_s": rates[poster] * share if poster in rates else None,
                "estimate": shares[poster] > 1,
            }
        )
    return sorted(rows, key=lambda row: (-row["prompt_tokens"], row["prefill"], row["decode"], row["mode"]))[:_MOST]


def _poster(link: Link) -> str:
    """The worker that moves the bytes of a link."""
    prefill, decode, mode = link
    return prefill if mode == TransferMode.PUSH.value else decode
