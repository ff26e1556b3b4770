"""Figures of the last moments: rates and percentiles over a sliding window, in bounded memory."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence


class Rate:
    """Amount a second over the last `window_s` seconds, in slices of one second.

    Moments are seconds of any one clock.
    """

    def __init__(self, window_s: int, start_s: float) -> None:
        self._window_s = window_s
        self._start_s = start_s
        self._slices: deque[tuple[int, float]] = deque()

    def add(self, amount: float, now: float) -> None:
        """Count an amount at this moment. Moments may step back a little; they then count in the newest slice."""
        second = int(now)
        if self._slices and self._slices[-1][0] >= second:
            newest, sofar = self._slices[-1]
            self._slices[-1] = (newest, sofar + amount)
        else:
            self._slices.append((second, amount))
            self._forget(now)

    def per_second(self, now: float) -> float:
        """Mean over the window, or since the start where that is shorter (but at least a second)."""
        self._forget(now)
        span = min(float(self._window_s), max(1.0, now - self._start_s))
        return sum(amount for _, amount in self._slices) / span

    def _forget(self, now: float) -> None:
        while self._slices and self._slices[0][0] <= now - self._window_s:
            self._slices.popleft()


class Recent:
    """The latest values, at most `size` of them and none older than `window_s` seconds."""

    def __init__(self, window_s: float, size: int = 2048) -> None:
        self._window_s = window_s
        self._values: deque[tuple[float, float]] = deque(maxlen=size)

    def add(self, value: float, now: float) -> None:
        """Keep a value seen at this moment."""
        self._values.append((now, value))

    def percentiles(self, ranks: Sequence[int], now: float) -> list[float] | None:
        """Nearest-rank percentiles (smallest value that at least rank % of the values do not exceed); None if empty."""
        while self._values and self._values[0][0] < now - self._window_s:
            self._values.popleft()
        if not self._values:
            return None
        ordered = sorted(value for _, value in self._values)
        return [ordered[max(0, math.ceil(rank / 100 * len(ordered)) - 1)] for rank in ranks]
