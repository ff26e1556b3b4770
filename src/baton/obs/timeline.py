"""When things happened to one sequence, and the intervals that metrics and traces report.

Phases as vLLM defines them (v1/metrics/stats.py): queue = arrival to admission, prefill = admission to first token,
decode = first to last token, inference = admission to last token.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Timeline:
    """Moments of one sequence, seconds since the epoch; None while they have not come.

    Attributes:
        num_tokens: output tokens so far.
    """

    arrival_s: float
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    finished_s: float | None = None
    num_tokens: int = 0

    @property
    def queue(self) -> float | None:
        """Seconds from arrival to admission."""
        return _between(self.arrival_s, self.admitted_s)

    @property
    def first_token(self) -> float | None:
        """Seconds from arrival to the first token (TTFT)."""
        return _between(self.arrival_s, self.first_token_s)

    @property
    def prefill(self) -> float | None:
        """Seconds from admission to the first token."""
        return _between(self.admitted_s, self.first_token_s)

    @property
    def decode(self) -> float | None:
        """Seconds from the first token to the last."""
        return _between(self.first_token_s, self.last_token_s)

    @property
    def inference(self) -> float | None:
        """Seconds from admission to the last token."""
        return _between(self.admitted_s, self.last_token_s)

    @property
    def whole(self) -> float | None:
        """Seconds from arrival to the end."""
        return _between(self.arrival_s, self.finished_s)

    @property
    def per_token(self) -> float | None:
        """Mean seconds of an output token after the first (TPOT); None when there is no second token."""
        decode = self.decode
        return None if decode is None or self.num_tokens < 2 else decode / (self.num_tokens - 1)


def _between(start: float | None, end: float | None) -> float | None:
    """Two processes' clocks may disagree by a little: never negative."""
    return None if start is None or end is None else max(0.0, end - start)
