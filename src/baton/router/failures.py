"""What counts as a failure, and the few words that name its cause. Pure."""

from __future__ import annotations

import re

from baton.router.record import Attempt, RequestRecord
from baton.router.timeline import DONE

CLIENT_LEFT = 499
_MAX_CAUSE = 60
_DETAIL = re.compile(r"\bhttps?://\S+|\b[0-9a-f]{16,}\b|(?<=:)\d{2,5}\b")


def request_failure(record: RequestRecord) -> str | None:
    """Why a request failed by no fault of its client; None when it did not. An error inside a stream is one too."""
    if record.status >= 500 or (record.status == 200 and record.error):
        return cause(record.error) or f"status {record.status}"
    return None


def attempt_failure(record: RequestRecord, attempt: Attempt) -> str | None:
    """Why an attempt failed by its workers' fault, whether or not another one saved the request."""
    if attempt.outcome in ("", DONE) or 400 <= record.status < 500:
        return None
    return cause(attempt.outcome)


def cause(text: str) -> str:
    """An error without what differs from one to the next: addresses, ids, ports."""
    line = _DETAIL.sub("*", text.partition("\n")[0])
    return " ".join(line.split())[:_MAX_CAUSE]
