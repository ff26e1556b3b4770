"""Spans in the JSON object format of Chrome's trace viewer, which Perfetto reads too.

Times are microseconds since the epoch, so that documents of several engines with synchronised clocks can be merged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from zlib import crc32

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that took time.

    Attributes:
        start_s, end_s: seconds since the epoch.
        row: spans of one row lie beside or inside each other.
        facts: shown when it is selected.
    """

    name: str
    start_s: float
    end_s: float
    row: str
    facts: Mapping[str, Any] = field(default_factory=dict)


def document(
    spans: Sequence[Span], *, process: str, process_name: str, label: str, facts: Mapping[str, Any]
) -> Document:
    """The spans of one process about one thing.

    Args:
        process: unique over all documents that may be merged.
        label: of the thing, such as a transfer_id: the rows of different ones stay apart.
        facts: about the whole document.
    """
    first = crc32(label.encode()) >> 2
    rows = {row: first + number for number, row in enumerate(dict.fromkeys(span.row for span in spans))}
    names = [_name("process_name", process, 0, process_name)]
    names += [_name("thread_name", process, number, f"{row} {label}") for row, number in rows.items()]
    events = [
        {
            "name": span.name,
            "cat": "handoff",
            "ph": "X",
            "ts": _microseconds(span.start_s),
            "dur": max(0, _microseconds(span.end_s) - _microseconds(span.start_s)),
            "pid": process,
            "tid": rows[span.row],
            "args": dict(span.facts),
        }
        for span in spans
    ]
    return {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": dict(facts)}


def merge(documents: Sequence[Document]) -> Document:
    """One document with the events of all, each once; facts on which the documents agree are kept."""
    events: list[Any] = []
    for event in chain.from_iterable(each["traceEvents"] for each in documents):
        if event not in events:
            events.append(event)
    facts = [each["otherData"] for each in documents]
    agreed = {
        name: value
        for name, value in (facts[0].items() if facts else ())
        if all(each.get(name) == value for each in facts)
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": agreed}


def _name(kind: str, process: str, row: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": row, "args": {"name": name}}


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
