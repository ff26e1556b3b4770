"""Counts and percentiles of the last minutes: every event counts, in memory that does not grow with their number."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence

_SLICE_S = 2
_BASE = math.log(1.04)  # width of a bucket: a percentile is at most 2 % off
_LEAST_US = 1


class SlidingCounts:
    """Sums by key over the last seconds, forgotten in slices of two seconds.

    Amounts are whole numbers, so that what is taken away is exactly what was added. Moments are seconds of any one
    clock; one that steps back a little counts in the newest slice.

    Args:
        windows_s: for each of these, sums over so many seconds can be asked for.
    """

    def __init__(self, windows_s: Sequence[int]) -> None:
        self._windows = {window_s: Counter[Hashable]() for window_s in windows_s}
        self._slices: deque[tuple[int, Counter[Hashable]]] = deque()
        self._number = 0
        self._newest: Counter[Hashable] = Counter()

    def add(self, amounts: Iterable[tuple[Hashable, int]], now: float) -> None:
        """Count amounts by key at this moment."""
        self._turn_to(now)
        newest = self._newest
        for key, amount in amounts:
            newest[key] += amount

    def totals(self, window_s: int, now: float) -> Counter[Hashable]:
        """The sums as of now; a key that is not there counts as 0."""
        self._turn_to(now)
        totals = self._windows[window_s].copy()
        for key, amount in self._newest.items():
            totals[key] += amount
        return totals

    def _turn_to(self, now: float) -> None:
        """Close the newest slice when its time is over, and take what is too old out of the windows."""
        number = int(now / _SLICE_S)
        if number <= self._number:
            return
        if self._newest:
            self._slices.append((self._number, self._newest))
            for totals in self._windows.values():
                totals.update(self._newest)
            self._newest = Counter()
        for window_s, totals in self._windows.items():
            first, kept = self._number - window_s // _SLICE_S, number - window_s // _SLICE_S
            for old, amounts in self._slices:
                if first < old <= kept:
                    _take_off(totals, amounts)
        self._number = number
        oldest = number - max(self._windows) // _SLICE_S
        while self._slices and self._slices[0][0] <= oldest:
            self._slices.popleft()


def _take_off(totals: Counter[Hashable], amounts: Counter[Hashable]) -> None:
    for key, amount in amounts.items():
        totals[key] -= amount
        if not totals[key]:
            del totals[key]


def bucket(seconds: float) -> int:
    """The number of the bucket that a duration falls into; buckets grow by 4 % each, from a microsecond."""
    return round(math.log(max(_LEAST_US, seconds * 1e6)) / _BASE)


def seconds_of(number: int) -> float:
    """The middle of a bucket."""
    return math.exp(number * _BASE) / 1e6


def percentiles(counts: Iterable[tuple[int, int]], ranks: Sequence[int]) -> list[float] | None:
    """Nearest-rank percentiles in seconds of (bucket, count) pairs; None when they count nothing."""
    ordered = sorted(counts)
    total = sum(count for _, count in ordered)
    if not total:
        return None
    return [seconds_of(_ranked(ordered, max(1, math.ceil(rank / 100 * total)))) for rank in ranks]


def _ranked(ordered: Sequence[tuple[int, int]], wanted: int) -> int:
    seen = 0
    for number, count in ordered:
        seen += count
        if seen >= wanted:
            return number
    return ordered[-1][0]
