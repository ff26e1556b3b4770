"""A circuit breaker: a worker that fails again and again is left alone for a while, then tried with one request."""

from __future__ import annotations

from enum import Enum

from baton.router.worker import Outcome

_MAX_FAILURES = 3
_OPEN_S = 3.0


class BreakerState(Enum):
    """CLOSED: requests pass. OPEN: none does. HALF_OPEN: one may, and what becomes of it decides."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Of one incarnation of a worker. Times are seconds of any one clock that does not go back.

    Args:
        max_failures: so many in a row open it.
        open_s: from its opening until one request may try.
    """

    def __init__(self, *, max_failures: int = _MAX_FAILURES, open_s: float = _OPEN_S) -> None:
        self._max_failures = max_failures
        self._open_s = open_s
        self._num_failures = 0
        self._trying = False
        self.opens_until_s: float | None = None

    def state(self, now: float) -> BreakerState:
        """Its state at this moment."""
        if self.opens_until_s is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self.opens_until_s else BreakerState.HALF_OPEN

    def admits(self, now: float) -> bool:
        """Whether a request may pass now."""
        return not self._trying and self.state(now) is not BreakerState.OPEN

    def begin(self, now: float) -> bool:
        """A request passes. Returns whether it is the one that decides, to be handed to `end`."""
        decides = not self._trying and self.state(now) is BreakerState.HALF_OPEN
        self._trying |= decides
        return decides

    def end(self, outcome: Outcome, now: float, *, decides: bool) -> None:
        """A request has ended. Of those that began before it opened, nothing is learned any more."""
        if decides:
            self._trying = False
        elif self.opens_until_s is not None:
            return
        if outcome is Outcome.FAILED:
            self._num_failures += 1
            if decides or self._num_failures >= self._max_failures:
                self.opens_until_s = now + self._open_s
        elif outcome is not Outcome.CANCELLED:  # REFUSED and BUSY are answers of a worker that is well
            self._num_failures, self.opens_until_s = 0, None
