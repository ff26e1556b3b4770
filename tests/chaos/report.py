"""What came out of a run of faults: figures, and a table of them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.answers import Answer
from tests.chaos.asks import Ask
from tests.chaos.verdicts import BAD, Downtime, Seen, Verdict, judge, share

_KEPT_FAILURES, _KEPT_MESSAGES, _MESSAGE_CHARS = 20, 12, 100


@dataclass(slots=True)
class Judged:
    """Requests by verdict.

    Attributes:
        failures: the first that went wrong, with the request and why.
        messages: of errors, by how often; the status in front.
    """

    verdicts: dict[str, int]
    messages: dict[str, int]
    failures: list[dict[str, Any]] = field(default_factory=list)
    error_share: float = 0.0
    right_share: float = 0.0

    @property
    def num_bad(self) -> int:
        """Requests that must not have ended as they did."""
        return sum(self.verdicts.get(verdict.value, 0) for verdict in BAD)


def judge_all(seen: Iterable[Seen], asks: Mapping[int, Ask], right: Mapping[int, Answer], down: Downtime) -> Judged:
    """The verdict on each request."""
    verdicts: list[Verdict] = []
    messages: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    for each in seen:
        verdict, words = judge(each, right[each.number], down)
        verdicts.append(verdict)
        if verdict in (Verdict.ERROR, Verdict.CUT):
            messages[f"{each.status} {(each.error or '')[:_MESSAGE_CHARS]}"] += 1
        if verdict in BAD and len(failures) < _KEPT_FAILURES:
            failures.append(_failure(each, verdict, words, asks[each.number]))
    return Judged(
        verdicts=dict(Counter(verdict.value for verdict in verdicts)),
        messages=dict(messages.most_common()),
        failures=failures,
        error_share=round(share(verdicts, Verdict.ERROR) + share(verdicts, Verdict.CUT), 4),
        right_share=round(share(verdicts, Verdict.RIGHT), 4),
    )


def _failure(seen: Seen, verdict: Verdict, words: str, ask: Ask) -> dict[str, Any]:
    """ended: on the clock of the logs."""
    lasted_s = round(seen.ended_s - seen.started_s, 2)
    ended = time.strftime("%H:%M:%S", time.localtime(time.time() - time.monotonic() + seen.ended_s))
    return {"verdict": verdict.value, "why": words, "ended": ended, "after_s": lasted_s, "ask": asdict(ask)}


@dataclass(slots=True, kw_only=True)
class Report:
    """A run.

    Attributes:
        faults: that were done, by kind; missed: that found nothing to do.
        load: requests during the faults; settling, after: two batches once the fleet was whole again.
        router: sums of its counters, over all routers that lived.
        downtime_s: of the router.
        full_strength_s: from the end of the last fault until the router saw every worker ready.
        fallbacks_settling: hand-offs of the first batch that failed, though it had its right answers: a data connection
            that broke at rest is noticed, and made anew, by its next use.
        fallbacks_after: the same of the second; none may.
        not_ready, held: what was still missing, and what blocks or sequences were still held, at the end; empty: none.
    """

    seed: int
    mode: str
    seconds: float
    faults: dict[str, int]
    missed: dict[str, int]
    load: Judged
    settling: Judged
    after: Judged
    router: dict[str, float]
    downtime_s: float
    full_strength_s: float
    fallbacks_settling: int
    fallbacks_after: int
    not_ready: list[str]
    held: list[str]

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The first requests that ended as they must not."""
        return self.load.failures + self.settling.failures + self.after.failures

    @property
    def problems(self) -> list[str]:
        """Why the run has failed, in words; empty: it has not."""
        found = [f"{self.load.num_bad} requests ended as they must not"] if self.load.num_bad else []
        afterwards = (self.settling.verdicts, self.after.verdicts)
        wrong = sum(sum(verdicts.values()) - verdicts.get(Verdict.RIGHT.value, 0) for verdicts in afterwards)
        found += [f"{wrong} requests were not answered right after it was over"] if wrong else []
        found += [f"{self.fallbacks_after} hand-offs failed after it was over"] if self.fallbacks_after else []
        return found + self.not_ready + self.held

    def as_json(self) -> str:
        """All of it."""
        return json.dumps({**asdict(self), "problems": self.problems}, indent=1, default=str)


def table(report: Report) -> str:
    """Lines for a person."""
    lines = [f"{report.mode}, seed {report.seed}, {report.seconds:.0f} s", "", f"{'fault':32}done  missed"]
    kinds = sorted({*report.faults, *report.missed})
    lines += [f"{kind:32}{report.faults.get(kind, 0):4}  {report.missed.get(kind, 0):6}" for kind in kinds]
    lines.append(f"{'all':32}{sum(report.faults.values()):4}  {sum(report.missed.values()):6}")
    lines += ["", f"{'answers':16}under faults    settling  afterwards"]
    for verdict in Verdict:
        counts = [each.verdicts.get(verdict.value, 0) for each in (report.load, report.settling, report.after)]
        lines.append(f"{verdict.value:16}{counts[0]:12}  {counts[1]:10}  {counts[2]:10}")
    lines += [
        "",
        f"of those that met a router and stayed: right {report.load.right_share:.1%}, "
        f"errors {report.load.error_share:.1%}",
        "router: " + ", ".join(f"{name} {value:.0f}" for name, value in sorted(report.router.items())),
        f"hand-offs that failed: settling {report.fallbacks_settling}, afterwards {report.fallbacks_after}",
        f"router down {report.downtime_s:.1f} s; full strength {report.full_strength_s:.1f} s after the last fault",
    ]
    lines += [f"{count:8} x {message}" for message, count in list(report.load.messages.items())[:_KEPT_MESSAGES]]
    lines += [f"    {each['verdict']} at {each['ended']}: {each['why']}" for each in report.failures]
    lines += [f"PROBLEM: {problem}" for problem in report.problems]
    return "\n".join(lines)
