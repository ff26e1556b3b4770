"""GET /trace/{transfer_id}: one attempt as the router and both its engines saw it, in one Chrome trace."""

from __future__ import annotations

import asyncio
import reprlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from baton.obs import chrome_trace
from baton.obs.chrome_trace import Document, Span
from baton.router.http import Http, HttpError
from baton.router.panel import WorkerPanel
from baton.router.record import Attempt, Journal, RequestRecord
from baton.router.timeline import attempt_spans
from baton.web.errors import ApiError

_TIMEOUT_S = 3.0


class _Trace(msgspec.Struct):
    """What must be there to merge a worker's answer."""

    traceEvents: list[dict[str, Any]]
    otherData: dict[str, Any]


async def show_trace(
    journal: Journal, workers: Mapping[str, WorkerPanel], http: Http, transfer_id: str, now: float
) -> Document:
    """The merged document; `missing` of its facts names workers that had nothing to add.

    Raises:
        ApiError: 404, no recent attempt has this transfer_id.
    """
    record, attempt = _find(journal, transfer_id)
    names = [name for name in (attempt.prefill, attempt.decode) if name]
    answers = await asyncio.gather(*(_ask(http, workers.get(name), transfer_id) for name in names))
    theirs = [answer for answer in answers if answer is not None]
    agreed = chrome_trace.merge(theirs)["otherData"] if theirs else {}
    merged = chrome_trace.merge([own_document(record, attempt, {**agreed, "transfer_id": transfer_id}, now), *theirs])
    missing = [name for name, answer in zip(names, answers, strict=True) if answer is None]
    merged["otherData"].update({"missing": missing} if missing else {})
    return merged


def _find(journal: Journal, transfer_id: str) -> tuple[RequestRecord, Attempt]:
    for record in journal.recent():
        for attempt in record.attempts:
            if transfer_id and attempt.transfer_id == transfer_id:
                return record, attempt
    raise ApiError(404, f"no recent request has the transfer_id {reprlib.repr(transfer_id)}")


def own_document(record: RequestRecord, attempt: Attempt, facts: Mapping[str, Any], now: float) -> Document:
    """The router's part: the request, its wait, and the attempt's parts."""
    end_s = now if record.ended_s is None else record.ended_s
    told = {
        "request_id": record.request_id,
        "status": record.status,
        "relayed": record.relayed,
        "prefill": attempt.prefill,
        "decode": attempt.decode,
        "outcome": attempt.outcome,
    }
    spans = [
        Span(name="request", start_s=record.arrival_s, end_s=end_s, row="request", facts=told),
        Span(name="queue", start_s=record.arrival_s, end_s=attempt.placed_s, row="request"),
        *attempt_spans(attempt, end_s, row="request"),
    ]
    return chrome_trace.document(
        [span for span in spans if span.end_s > span.start_s],
        process="router",
        process_name="router",
        label=attempt.transfer_id,
        facts=facts,
    )


async def _ask(http: Http, worker: WorkerPanel | None, transfer_id: str) -> Document | None:
    if worker is None:
        return None
    headers = {"authorization": f"Bearer {worker.api_key}"} if worker.api_key else {}
    url = f"{worker.url}/trace/{quote(transfer_id, safe='')}"
    try:
        answer = await http.get_json(url, timeout_s=_TIMEOUT_S, headers=headers)
        trace = msgspec.convert(answer, _Trace)
    except (HttpError, msgspec.ValidationError):
        return None
    return {"traceEvents": trace.traceEvents, "otherData": trace.otherData}
