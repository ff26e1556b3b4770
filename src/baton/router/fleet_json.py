"""The body of GET /fleet: workers, links, figures, and the latest requests with their attempts. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from baton.router.failures import CLIENT_LEFT
from baton.router.panel import WorkerPanel
from baton.router.record import Attempt, Journal, RequestRecord
from baton.router.timeline import first_tokens, request_spans

_MAX_TEXT = 160
"""Characters of what a client or a worker said; its whole is in the log."""


def worker_row(worker: WorkerPanel, bytes_per_s: float | None) -> dict[str, Any]:
    """One worker as JSON. `facts` is null until it answered once."""
    facts, gauges = worker.facts, worker.gauges
    return {
        "id": worker.worker_id,
        "url": worker.url,
        "state": worker.state.value,
        "role": None if worker.role is None else worker.role.value,
        "note": _cut(worker.note),
        "breaker": worker.breaker,
        "outstanding": {
            "requests": worker.num_requests,
            "tokens": worker.num_tokens,
            "inbound_tokens": worker.inbound_tokens,
        },
        "facts": facts
        and {
            "kind": facts.kind.value,
            "incarnation": facts.incarnation,
            "transfer_modes": sorted(mode.value for mode in facts.transfer_modes),
            "models": [_cut(name) for name in facts.models],
            "fingerprint": facts.fingerprint,
            "block_tokens": facts.block_tokens,
            "num_blocks": facts.num_blocks,
            "max_num_seqs": facts.max_num_seqs,
            "max_model_len": facts.max_model_len,
        },
        "gauges": {
            "running": gauges.num_running,
            "waiting": gauges.num_waiting,
            "reserved": gauges.num_reserved,
            "used_blocks": gauges.used_blocks,
            "pinned_blocks": gauges.pinned_blocks,
            "leased": gauges.num_leased,
            "in_flight": gauges.num_in_flight,
        },
        "handoff": {**worker.handoff, "bytes_per_s": bytes_per_s} if worker.handoff else None,
        "unpaired": _by_reason(worker.unpaired),
    }


def _by_reason(unpaired: Mapping[str, str]) -> list[dict[str, Any]]:
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for name, reason in unpaired.items():
        reasons[_cut(reason)].append(name)
    return [{"reason": reason, "with": names} for reason, names in reasons.items()]


def request_row(record: RequestRecord, now: float) -> dict[str, Any]:
    """One request as JSON.

    Spans are [name, row, start ms, end ms] since its arrival. `parts` are those of the time to the first tokens, in ms;
    null until there is a token, and for an answer in one piece.
    """
    start_s, split = record.arrival_s, first_tokens(record)
    spans = [
        [span.name, span.row, _ms(start_s, span.start_s), _ms(start_s, span.end_s)]
        for span in request_spans(record, now)
    ]
    return {
        "key": f"{start_s:.6f} {_cut(record.request_id)}",
        "request_id": _cut(record.request_id),
        "path": record.path,
        "model": _cut(record.model),
        "stream": record.stream,
        "arrival_s": start_s,
        "live": record.ended_s is None,
        "status": record.status,
        "error": _cut(record.error),
        "relayed": record.relayed,
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.num_cached_tokens,
        "new_tokens": record.num_new_tokens,
        "first_token_ms": None if record.first_token_s is None else _ms(start_s, record.first_token_s),
        "total_ms": _ms(start_s, now if record.ended_s is None else record.ended_s),
        "parts": split and {name: round(value * 1e3, 3) for name, value in split.known().items()},
        "attempts": [_attempt_row(attempt) for attempt in record.attempts],
        "spans": spans,
    }


def _attempt_row(attempt: Attempt) -> dict[str, Any]:
    return {
        "transfer_id": attempt.transfer_id,
        "mode": attempt.mode,
        "prefill": attempt.prefill,
        "decode": attempt.decode,
        "outcome": _cut(attempt.outcome),
        "continues": attempt.continues,
    }


def request_rows(records: Iterable[RequestRecord], now: float) -> list[dict[str, Any]]:
    """Each as JSON."""
    return [request_row(record, now) for record in records]


def latest(journal: Journal, most: int) -> list[RequestRecord]:
    """At most so many requests, the latest of their kind: half of them that run, where there are as many, and half that
    ended."""
    running = sorted(journal.live.values(), key=lambda record: -record.arrival_s)
    num_running = min(len(running), max(most - most // 2, most - len(journal.ended)))
    return [*running[:num_running], *islice(reversed(journal.ended), most - num_running)]


def troubled(record: RequestRecord) -> bool:
    """Whether a request ended with an error, or needed more than one attempt; one that its client left is neither."""
    if record.status == CLIENT_LEFT:
        return False
    return bool(record.error) or record.status >= 400 or len(record.attempts) > 1


def _ms(start_s: float, end_s: float) -> float:
    return round(max(0.0, end_s - start_s) * 1e3, 3)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "\u2026"
