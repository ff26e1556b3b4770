"""How often an engine may be started again."""

from __future__ import annotations

from collections import deque


class RestartBudget:
    """At most `limit` restarts in any `window_s` seconds: an engine that keeps dying needs a person.

    Args:
        limit: 0 allows none.
    """

    def __init__(self, limit: int, window_s: float = 600.0) -> None:
        self._limit = limit
        self._window_s = window_s
        self._times_s: deque[float] = deque()

    def take(self, now_s: float) -> bool:
        """Whether one more restart may happen now; if so it counts.

        Args:
            now_s: on a clock that never goes back.
        """
        while self._times_s and now_s - self._times_s[0] >= self._window_s:
            self._times_s.popleft()
        if len(self._times_s) >= self._limit:
            return False
        self._times_s.append(now_s)
        return True
