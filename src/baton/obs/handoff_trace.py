"""The timeline of a hand-off request on one engine: from moments to spans. Pure.

Both engines name the trace alike: by the caller's W3C trace context, or by the transfer_id that both legs carry.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from baton.core.exchange import TransferRecord
from baton.obs.chrome_trace import Span

# Version 00 has this length and no other.
_TRACEPARENT = re.compile(r"(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_NEXT = {
    ("queue", "admitted"): "prefill",
    ("queue", "grant"): "prefill",
    ("prefill", "withdraw"): "queue",
    ("prefill", "prefilled"): "answer",
    ("queue", "reserve"): "transfer",
    ("transfer", "landed"): "decode",
    ("transfer", "failed"): "queue",
    ("prefill", "first token"): "decode",
}
"""(phase, moment) -> the phase that begins; any other moment changes nothing."""
FINISH = "finish"

Moments = Sequence[tuple[str, float]]
"""(what happened, seconds since the epoch)."""


def trace_id(traceparent: str | None, transfer_id: str) -> str:
    """32 hexadecimal digits, from a valid `traceparent` (W3C Trace Context, section 3.2), else from the transfer_id."""
    found = _TRACEPARENT.fullmatch((traceparent or "").strip())
    if found is not None:
        return found[1]
    return hashlib.blake2b(transfer_id.encode(), digest_size=16).hexdigest()


def phases(arrival_s: float, moments: Moments) -> list[Span]:
    """What a request went through, one after the other: queue, prefill or transfer, decode. The last may be open-ended.

    A phase without duration is left out; the phase that still runs ends at the last moment.
    """
    spans: list[Span] = []
    phase, start_s = "queue", arrival_s
    ordered = sorted(moments, key=lambda moment: moment[1])
    for what, time_s in ordered:
        following = _NEXT.get((phase, what))
        if following is None and what != FINISH:
            continue
        _append(spans, phase, start_s, time_s)
        if following is None:
            return spans
        phase, start_s = following, time_s
    if ordered:
        _append(spans, phase, start_s, ordered[-1][1])
    return spans


def chunks(moments: Moments) -> list[Span]:
    """The steps of a prefill that took several, each from the end of the one before."""
    spans: list[Span] = []
    start_s: float | None = None
    for what, time_s in sorted(moments, key=lambda moment: moment[1]):
        if what in ("progress", "prefilled") and start_s is not None:
            _append(spans, "chunk", start_s, time_s, row="chunks")
        if what == "progress" or (start_s is None and what in ("admitted", "grant")):
            start_s = time_s
        elif what in ("prefilled", "withdraw"):
            start_s = None
    return spans if len(spans) > 1 else []


def _append(spans: list[Span], name: str, start_s: float, end_s: float, row: str = "request") -> None:
    if end_s > start_s:
        spans.append(Span(name=name, start_s=start_s, end_s=end_s, row=row))


def wire(record: TransferRecord) -> Span | None:
    """The bytes' way, as the side that posted them saw it; None where its times are not known."""
    if record.started_s is None or record.ended_s is None:
        return None
    facts = {
        "bytes": record.num_bytes,
        "descriptors": record.num_descriptors,
        "early_bytes": record.early_bytes,
        "post_ms": record.post_s * 1e3,
        "wire_ms": record.wire_s * 1e3,
        "exposed_ms": record.exposed_s * 1e3,
    }
    return Span(name="wire", start_s=record.started_s, end_s=record.ended_s, row="wire", facts=facts)
