"""What is to be thought of what a client saw. Decisions only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from tests.chaos.answers import Answer, difference

FAULT_STATUSES = frozenset({429, 500, 502, 503, 504})
"""Of a request with nothing wrong in itself, that a fault stopped."""


class Verdict(Enum):
    """The first five are as it should be.

    RIGHT: the whole answer. ERROR: a clear 4xx or 5xx. CUT: an error event, behind a right beginning. LEFT: the client
    left, with a right beginning. NO_ROUTER: the connection broke while the router was down.
    WRONG: other tokens, also in a part. HANG: no end in time. BROKEN: the connection ended without a word though the
    router lived. UNCLEAR: an error that says nothing, or blames the request.
    """

    RIGHT = "right"
    ERROR = "error"
    CUT = "cut"
    LEFT = "left"
    NO_ROUTER = "no router"
    WRONG = "wrong"
    HANG = "hang"
    BROKEN = "broken"
    UNCLEAR = "unclear"


BAD = (Verdict.WRONG, Verdict.HANG, Verdict.BROKEN, Verdict.UNCLEAR)


@dataclass(slots=True, kw_only=True)
class Seen:
    """What one client saw. Times on time.monotonic().

    Attributes:
        status: 0 when none came.
        error: the message of a body or of an event; None: there was none.
        done: the answer came to its end: [DONE], or the whole body.
        broken: how the connection ended before that.
    """

    number: int
    started_s: float
    ended_s: float = 0.0
    status: int = 0
    answer: Answer = field(default_factory=Answer)
    error: str | None = None
    done: bool = False
    left: bool = False
    hung: bool = False
    broken: str | None = None


@dataclass(slots=True)
class Downtime:
    """When the router was down: from a fault until it served HTTP again, seconds on time.monotonic()."""

    spans_s: list[tuple[float, float]] = field(default_factory=list)

    def touches(self, from_s: float, to_s: float) -> bool:
        """Whether it was down at some time of this span."""
        return any(start_s <= to_s and from_s <= end_s for start_s, end_s in self.spans_s)

    @property
    def total_s(self) -> float:
        """How long in all; spans that overlap count once."""
        total_s, known_s = 0.0, 0.0
        for start_s, end_s in sorted(self.spans_s):
            total_s += max(0.0, end_s - max(start_s, known_s))
            known_s = max(known_s, end_s)
        return total_s


def judge(seen: Seen, right: Answer, downtime: Downtime) -> tuple[Verdict, str]:
    """The verdict, and why where it is a bad one."""
    complete = seen.status == 200 and seen.done and seen.error is None
    if words := difference(seen.answer, right, complete=complete):
        return Verdict.WRONG, words
    if complete:
        return Verdict.RIGHT, ""
    if seen.left:
        return Verdict.LEFT, ""
    if seen.hung:
        return Verdict.HANG, f"status {seen.status}, {len(seen.answer.choices)} choices had begun"
    if seen.error is not None:
        return _judge_error(seen)
    if downtime.touches(seen.started_s, seen.ended_s):
        return Verdict.NO_ROUTER, ""
    return Verdict.BROKEN, f"status {seen.status}, {seen.broken or 'ended without [DONE]'}"


def _judge_error(seen: Seen) -> tuple[Verdict, str]:
    if not seen.error:
        return Verdict.UNCLEAR, f"status {seen.status} without a message"
    if seen.status == 200:
        return Verdict.CUT, ""
    if seen.status in FAULT_STATUSES:
        return Verdict.ERROR, ""
    return Verdict.UNCLEAR, f"status {seen.status}: {seen.error}"


def share(verdicts: Iterable[Verdict], of: Verdict) -> float:
    """Of those that did not leave and had a router, 0 to 1."""
    counted = [verdict for verdict in verdicts if verdict not in (Verdict.LEFT, Verdict.NO_ROUTER)]
    return sum(verdict is of for verdict in counted) / max(1, len(counted))
