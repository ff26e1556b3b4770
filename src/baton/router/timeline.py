"""What the time of a request was made of. Pure: from the moments of its record to parts and spans.

Moments of two connections may come a little out of order (a decode engine's first token can overtake the prefill
engine's answer), so each counts from the latest before it: no part is negative, and the sums hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from baton.obs.chrome_trace import Span
from baton.router.record import Attempt, RequestRecord

PARTS = ("queue", "retries", "prefill", "handover", "first_decode")
"""Of the time to the first tokens, in order of time."""

DONE = "done"
_MOMENTS = (("prefill", "prefilled_s"), ("handover", "landed_s"), ("first_decode", "decoded_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokens:
    """Seconds from the arrival of a streamed request, one part after the other. None: it did not come to that part.

    The parts that are there add up to the time until the last of their moments: with all of them, until what followed
    the first token came from the decode worker. A client whose first token was relayed had it after queue + retries +
    prefill; any other had it after the hand-over, or, from one worker alone, after prefill.

    Attributes:
        queue: arrival to the choice of the first attempt's workers.
        retries: from there to the choice of the workers that gave the first token; 0 when the first ones did.
        prefill: to the prefill worker's answer, or the first token of a worker that serves it whole.
        handover: to the decode worker's first token.
        first_decode: to what it sent next.
        mode: of the attempt that gave the first token.
    """

    queue: float
    retries: float
    prefill: float | None
    handover: float | None
    first_decode: float | None
    mode: str

    def known(self) -> dict[str, float]:
        """The parts that are there, by name, in order of time."""
        values = ((name, getattr(self, name)) for name in PARTS)
        return {name: value for name, value in values if value is not None}


def first_tokens(record: RequestRecord) -> FirstTokens | None:
    """The parts of a streamed request; None for any other, and for one that got no token."""
    if not record.stream or record.first_token_s is None:
        return None
    given = [attempt for attempt in record.attempts if attempt.placed_s <= record.first_token_s]
    if not given:
        return None
    first, giving = given[0], given[-1]
    parts = {name: end_s - start_s for name, start_s, end_s in _steps(giving)}
    if not parts:  # nothing is known of one worker's stream but its first piece
        parts = {"prefill": max(0.0, record.first_token_s - giving.placed_s)}
    return FirstTokens(
        queue=max(0.0, first.placed_s - record.arrival_s),
        retries=giving.placed_s - first.placed_s,
        prefill=parts.get("prefill"),
        handover=parts.get("handover"),
        first_decode=parts.get("first_decode"),
        mode=giving.mode,
    )


def _steps(attempt: Attempt) -> Iterator[tuple[str, float, float]]:
    """(part, start, end) of the parts of an attempt that ended."""
    start_s = attempt.placed_s
    alone = attempt.prefilled_s is None
    for name, moment in _MOMENTS:
        end_s: float | None = getattr(attempt, moment)
        if end_s is None:
            continue
        end_s = max(start_s, end_s)
        yield "prefill" if alone and name == "handover" else name, start_s, end_s
        start_s = end_s


def request_spans(record: RequestRecord, now: float) -> list[Span]:
    """The waterfall of a request: its queue, then each attempt's parts in a row of its own, up to `now` at most."""
    end_s = now if record.ended_s is None else record.ended_s
    placed_s = record.attempts[0].placed_s if record.attempts else end_s
    spans = [_span("queue", record.arrival_s, placed_s, "router")]
    for number, attempt in enumerate(record.attempts, 1):
        spans += attempt_spans(attempt, end_s, row=f"attempt {number}")
    return [span for span in spans if span.end_s > span.start_s]


def attempt_spans(attempt: Attempt, end_s: float, *, row: str) -> list[Span]:
    """The parts of an attempt; what goes on, or was broken off, lasts until it ended, or `end_s`."""
    steps = list(_steps(attempt))
    spans = [_span(*step, row) for step in steps]
    start_s = steps[-1][2] if steps else attempt.placed_s
    until_s = end_s if attempt.ended_s is None else attempt.ended_s
    return [*spans, _span(_last(attempt), start_s, max(start_s, until_s), row)]


def _last(attempt: Attempt) -> str:
    """What an attempt did after its last known moment; an answer in one piece hides where its parts ended."""
    if attempt.decoded_s is not None:
        return "stream"
    whole = attempt.outcome == DONE
    if attempt.landed_s is not None:
        return "stream" if whole else "first_decode"
    if attempt.prefilled_s is None:
        return "whole" if whole else "prefill"
    if not attempt.decode and attempt.mode == "single":
        return "stream"
    return "rest" if whole else "handover"


def _span(name: str, start_s: float, end_s: float, row: str) -> Span:
    return Span(name=name, start_s=start_s, end_s=end_s, row=row)
