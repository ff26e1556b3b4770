"""Trace ids, phases and Chrome's trace format (JSON object format of the Trace Event Format document)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton.core.exchange import TransferRecord
from baton.core.handoff import TransferMode
from baton.obs.chrome_trace import Span, document, merge
from baton.obs.handoff_trace import chunks, phases, trace_id, wire

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"  # the example of W3C Trace Context
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.mark.parametrize("header", [PARENT, f" {PARENT} ", f"cc{PARENT[2:]}-what-the-future-will-be-like"])
def test_the_callers_trace_id_is_taken(header: str) -> None:
    assert trace_id(header, "t") == TRACE


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "x" * 10_000,
        PARENT.upper(),
        PARENT.replace(TRACE, "0" * 32),
        PARENT.replace("00f067aa0ba902b7", "0" * 16),
        f"ff{PARENT[2:]}",
        PARENT[:-1],
        f"{PARENT}-more",
        f"{PARENT}\n00",
    ],
)
def test_else_both_engines_derive_the_same_from_the_transfer_id(header: str | None) -> None:
    """BLAKE2b of 16 bytes over the id's UTF-8."""
    assert trace_id(header, "t") == trace_id(None, "t") != trace_id(header, "u")
    assert trace_id(None, "abc") == "cf4ab791c62b8d2b2109c90275287816"


def names(moments: list[tuple[str, float]]) -> list[tuple[str, float, float]]:
    return [(span.name, span.start_s, span.end_s) for span in phases(0.0, moments)]


@pytest.mark.parametrize(
    ("moments", "wanted"),
    [
        ([], []),
        ([("admitted", 1.0)], [("queue", 0.0, 1.0)]),
        (
            [("grant", 1.0), ("admitted", 1.0), ("prefilled", 3.0), ("first token", 3.0), ("finish", 3.5)],
            [("queue", 0.0, 1.0), ("prefill", 1.0, 3.0), ("answer", 3.0, 3.5)],
        ),
        (
            [("grant", 1.0), ("withdraw", 2.0), ("grant", 3.0), ("prefilled", 4.0)],
            [("queue", 0.0, 1.0), ("prefill", 1.0, 2.0), ("queue", 2.0, 3.0), ("prefill", 3.0, 4.0)],
        ),
        (
            [("reserve", 1.0), ("landed", 2.0), ("first token", 2.0), ("admitted", 2.1), ("finish", 4.0)],
            [("queue", 0.0, 1.0), ("transfer", 1.0, 2.0), ("decode", 2.0, 4.0)],
        ),
        ([("reserve", 1.0), ("forgo", 2.0), ("finish", 2.0)], [("queue", 0.0, 1.0), ("transfer", 1.0, 2.0)]),
        ([("finish", 2.0), ("reserve", 3.0)], [("queue", 0.0, 2.0)]),
        ([("landed", 2.0), ("reserve", 1.0)], [("queue", 0.0, 1.0), ("transfer", 1.0, 2.0)]),
    ],
)
def test_phases(moments: list[tuple[str, float]], wanted: list[tuple[str, float, float]]) -> None:
    assert names(moments) == wanted


@pytest.mark.parametrize(
    ("moments", "wanted"),
    [
        ([("grant", 1.0), ("prefilled", 3.0)], []),
        ([("grant", 1.0), ("progress", 3.0), ("prefilled", 3.0)], []),
        ([("grant", 1.0), ("progress", 2.0), ("progress", 4.0), ("prefilled", 4.0)], [(1.0, 2.0), (2.0, 4.0)]),
        (
            [
                ("grant", 1.0),
                ("progress", 2.0),
                ("withdraw", 3.0),
                ("grant", 5.0),
                ("progress", 6.0),
                ("prefilled", 7.0),
            ],
            [(1.0, 2.0), (5.0, 6.0), (6.0, 7.0)],
        ),
        (
            [("admitted", 1.0), ("grant", 2.0), ("progress", 2.0), ("prefilled", 3.0)],
            [(1.0, 2.0), (2.0, 3.0)],  # a grant is told after the step
        ),
        ([("reserve", 1.0), ("landed", 2.0)], []),
    ],
)
def test_chunks(moments: list[tuple[str, float]], wanted: list[tuple[float, float]]) -> None:
    assert [(span.start_s, span.end_s) for span in chunks(moments)] == wanted


def test_the_wire_is_shown_where_its_times_are_known() -> None:
    record = TransferRecord(
        transfer_id="t",
        mode=TransferMode.PUSH,
        num_bytes=8,
        num_descriptors=2,
        post_s=0.5,
        wire_s=1.0,
        exposed_s=0.25,
        early_bytes=4,
    )
    assert wire(record) is None
    timed = TransferRecord(
        **{**{name: getattr(record, name) for name in record.__slots__}, "started_s": 1.0, "ended_s": 3.0}
    )
    span = wire(timed)
    assert span is not None and (span.start_s, span.end_s, span.row) == (1.0, 3.0, "wire")
    assert (span.facts["bytes"], span.facts["early_bytes"], span.facts["exposed_ms"]) == (8, 4, 250.0)


def made(process: str, label: str = "t", **facts: Any) -> dict[str, Any]:
    spans = [
        Span(name="request", start_s=1000.0, end_s=1002.0, row="request", facts={"n": 1}),
        Span(name="wire", start_s=1000.5, end_s=1000.25, row="wire"),
    ]
    return document(spans, process=process, process_name=f"prefill {process}", label=label, facts=facts)


def test_a_document_is_what_the_viewer_reads() -> None:
    found = json.loads(json.dumps(made("e1", transfer_id="t")))
    assert found["displayTimeUnit"] == "ms" and found["otherData"] == {"transfer_id": "t"}
    process, first, second, request, wire_ = found["traceEvents"]
    assert (process["ph"], process["name"], process["args"]) == ("M", "process_name", {"name": "prefill e1"})
    assert [row["args"]["name"] for row in (first, second)] == ["request t", "wire t"]
    assert request == {
        "name": "request",
        "cat": "handoff",
        "ph": "X",
        "ts": 1_000_000_000,
        "dur": 2_000_000,
        "pid": "e1",
        "tid": first["tid"],
        "args": {"n": 1},
    }
    assert wire_["tid"] == second["tid"] != first["tid"] and wire_["dur"] == 0


def test_documents_merge() -> None:
    one, two = made("e1", trace_id="x", side="p"), made("e2", trace_id="x", side="d")
    both = merge([one, two, one])
    assert both["traceEvents"] == one["traceEvents"] + two["traceEvents"]
    assert both["otherData"] == {"trace_id": "x"}
    assert merge([]) == {"traceEvents": [], "displayTimeUnit": "ms", "otherData": {}}


def test_rows_of_different_transfers_of_one_engine_stay_apart() -> None:
    rows = [{event["tid"] for event in made("e1", label)["traceEvents"] if event["ph"] == "X"} for label in ("a", "b")]
    assert not rows[0] & rows[1]
