"""What a router knows of its requests in numbers: since its start for /metrics, of the last minutes for its page.

    figures = RouterFigures()
    journal.on_end(figures.observe)

Moments are those of the records, seconds since the epoch. Used on one event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from baton.obs import buckets
from baton.obs.histogram import Histogram
from baton.router.failures import attempt_failure, request_failure
from baton.router.record import RequestRecord
from baton.router.sliding import SlidingCounts
from baton.router.timeline import DONE, PARTS, FirstTokens, first_tokens
from baton.router.window import MODES, Link, last_mode, link_counts, tallies, tries, window_json

WINDOWS_S = (60, 300)
_MAX_CAUSES = 32
OTHER, REFUSED = "other", "refused"


class RouterFigures:
    """Counters since the start, distributions, and windows of the last 60 s and 5 min.

    Attributes:
        requests: by (HTTP status, `window.last_mode`).
        attempts: by (mode, how it ended): "done", "refused" (its request was wrong, or the client left), or the cause
            of its failure; of more than 32 causes the rest is "other".
        retries, continuations: as `window.tries` tells them apart.
        parts: seconds of the first tokens' parts, by names of `timeline.PARTS`.
        first_token, whole, per_token: seconds; first and per token of streamed requests.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self.attempts: Counter[tuple[str, str]] = Counter({(mode, DONE): 0 for mode in MODES})
        self.retries = 0
        self.continuations = 0
        self.relayed = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.new_tokens = 0
        self.parts = {part: Histogram(buckets.FIRST_TOKEN_SECONDS) for part in PARTS}
        self.first_token = Histogram(buckets.FIRST_TOKEN_SECONDS)
        self.whole = Histogram(buckets.REQUEST_SECONDS)
        self.per_token = Histogram(buckets.TOKEN_SECONDS)
        self._recent = SlidingCounts(WINDOWS_S)
        self._first_s: float | None = None
        self._causes: set[str] = set()

    def observe(self, record: RequestRecord) -> None:
        """Count a request that ended."""
        split = first_tokens(record)
        seconds = durations(record, split)
        self._count(record)
        self._distribute(seconds)
        now = record.arrival_s if record.ended_s is None else record.ended_s
        if self._first_s is None:
            self._first_s = now
        self._recent.add(tallies(record, split, seconds, self._failures(record)), now)

    def window(self, window_s: int, now: float) -> dict[str, Any]:
        """Figures of the last seconds, one of WINDOWS_S, as JSON; rates since the first request where that is less."""
        since_s = now if self._first_s is None else self._first_s
        return window_json(self._recent.totals(window_s, now), min(float(window_s), max(1.0, now - since_s)))

    def links(self, window_s: int, now: float) -> dict[Link, dict[str, int]]:
        """Traffic of each link in the last seconds, see `window.link_counts`."""
        return link_counts(self._recent.totals(window_s, now))

    def _count(self, record: RequestRecord) -> None:
        self.requests[str(record.status), last_mode(record)] += 1
        retried, continued = tries(record)
        self.retries += retried
        self.continuations += continued
        self.relayed += record.relayed
        self.prompt_tokens += record.num_prompt_tokens
        self.cached_tokens += record.num_cached_tokens
        self.new_tokens += record.num_new_tokens

    def _distribute(self, seconds: Mapping[str, float]) -> None:
        histograms = {**self.parts, "ttft": self.first_token, "whole": self.whole, "tpot": self.per_token}
        for name, value in seconds.items():
            histograms[name].observe(value)

    def _failures(self, record: RequestRecord) -> list[tuple[str, str]]:
        """(what failed, cause), the causes bounded; counts the attempts on the way."""
        failures = []
        for attempt in record.attempts:
            cause = attempt_failure(record, attempt)
            if cause is not None:
                cause = self._bounded(cause)
                failures.append(("attempt", cause))
            self.attempts[attempt.mode, cause or (DONE if attempt.outcome == DONE else REFUSED)] += 1
        whole = request_failure(record)
        return failures if whole is None else [*failures, ("request", self._bounded(whole))]

    def _bounded(self, cause: str) -> str:
        """Labels are kept for ever, so there may be only so many."""
        if len(self._causes) < _MAX_CAUSES:
            self._causes.add(cause)
        return cause if cause in self._causes else OTHER


def durations(record: RequestRecord, split: FirstTokens | None) -> dict[str, float]:
    """Seconds of a request that ended, by name: the parts, "ttft", "whole" and "tpot"; without what never came.

    "tpot" is the mean of a token after the first; only of streams that ended well.
    """
    seconds = {} if split is None else split.known()
    if record.ended_s is None:
        return seconds
    whole = max(0.0, record.ended_s - record.arrival_s)
    if record.status == 200 and not record.error:
        seconds["whole"] = whole
    if not record.stream or record.first_token_s is None:
        return seconds
    seconds["ttft"] = max(0.0, record.first_token_s - record.arrival_s)
    if "whole" in seconds and record.num_new_tokens > 1:
        seconds["tpot"] = (whole - seconds["ttft"]) / (record.num_new_tokens - 1)
    return seconds
