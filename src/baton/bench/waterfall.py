"""A Chrome trace of one request as rows of bars. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_HIDDEN = ("request_id", "trace_id", "transfer_id", "prefill", "decode", "side")
_ID_CHARS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One span. start_ms, end_ms: since the first span's start; where: the process it was seen by."""

    where: str
    name: str
    start_ms: float
    end_ms: float
    facts: Mapping[str, Any]


def bars(document: Mapping[str, Any]) -> list[Bar]:
    """The spans of a trace (Chrome's JSON object format, complete events), process by process, by their start.

    Clocks of several machines are taken as they are.
    """
    events = document.get("traceEvents") or []
    names = {
        event["pid"]: event["args"]["name"]
        for event in events
        if event.get("ph") == "M" and event.get("name") == "process_name"
    }
    spans = [event for event in events if event.get("ph") == "X"]
    origin = min((event["ts"] for event in spans), default=0)
    order = {pid: min(event["ts"] for event in spans if event["pid"] == pid) for pid in {e["pid"] for e in spans}}
    spans.sort(key=lambda event: (order[event["pid"]], str(event["pid"]), event["ts"], -event["dur"]))
    return [
        Bar(
            where=_short(str(names.get(event["pid"], event["pid"]))),
            name=event["name"],
            start_ms=(event["ts"] - origin) / 1e3,
            end_ms=(event["ts"] + event["dur"] - origin) / 1e3,
            facts=event.get("args") or {},
        )
        for event in spans
    ]


def lines(shown: Sequence[Bar], width: int) -> Iterator[tuple[str, str, str, str]]:
    """(process, span, bar of `width` characters, milliseconds and facts); a process is named once."""
    end_ms = max((bar.end_ms for bar in shown), default=0.0) or 1.0
    last = ""
    for bar in shown:
        before = min(round(bar.start_ms / end_ms * width), width - 1)
        length = max(1, min(round((bar.end_ms - bar.start_ms) / end_ms * width), width - before))
        facts = ", ".join(f"{key} {_shown(value)}" for key, value in bar.facts.items() if key not in _HIDDEN)
        times = f"{bar.start_ms:.1f} + {bar.end_ms - bar.start_ms:.1f} ms"
        yield "" if bar.where == last else bar.where, bar.name, " " * before + "█" * length, f"{times}  {facts}".strip()
        last = bar.where


def _short(name: str) -> str:
    """A role, and enough of an engine's id."""
    return " ".join(word[:_ID_CHARS] for word in name.split())


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
