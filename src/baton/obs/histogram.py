"""A histogram that costs one bisection an observation. For one thread; obs/metrics.py shows it to Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence


class Histogram:
    """Counts by upper bound, bounds included (Prometheus's `le`), and a sum.

    Args:
        bounds: upper bounds, growing; what lies above the last is counted under +Inf.
    """

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        assert list(bounds) == sorted(set(bounds)), "bounds must grow"
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self._counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self._counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """(upper bound, observations up to it), the last bound infinite."""
        seen = 0
        for bound, count in zip((*self.bounds, float("inf")), self._counts, strict=True):
            seen += count
            yield bound, seen
