"""What a server or a router tells of its engines: roles, and figures of their hand-offs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from baton.bench.client import Client, NoAnswerError

_TIMEOUT_S = 5.0
_LETTERS = {"prefill": "P", "decode": "D", "mixed": "M"}
_ORDER = "PDM"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """One engine at one moment.

    Attributes:
        name: its id at the router, or the server's URL.
        num_devices: tensor times pipeline parallel size.
        handoff: `handoff` of its GET /stats; empty without a peer.
        facts: model, incarnation, lengths: whatever it tells of itself.
    """

    name: str
    role: str
    num_devices: int
    handoff: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


async def look(client: Client) -> list[EngineView]:
    """Every engine behind a router (GET /fleet), or the one behind a server (GET /stats); none of other makes."""
    found = await _json(client, "/fleet")
    if isinstance(found.get("workers"), list):
        return [_worker(row) for row in found["workers"] if isinstance(row, dict)]
    found = await _json(client, "/stats")
    if isinstance(found.get("served"), dict):
        return [_view(client.url, found["served"].get("role"), found.get("handoff"), found["served"])]
    return []


async def first_model(client: Client) -> str:
    """The first name that is served.

    Raises:
        NoAnswerError: nothing answers there, or it serves no model.
    """
    models = (await client.ask("GET", "/v1/models", timeout_s=_TIMEOUT_S)).get("data") or []
    if not models:
        raise NoAnswerError(f"{client.url} serves no model")
    return str(models[0]["id"])


def topology(engines: Sequence[EngineView]) -> str:
    """Such as "1P2D": prefill (P), decode (D) and other (M) engines; "" when nothing is known of them."""
    counts = Counter(_LETTERS.get(engine.role, "M") for engine in engines)
    return "".join(f"{counts[letter]}{letter}" for letter in _ORDER if counts[letter])


def mode_of(handoff: Mapping[str, Any] | None) -> str:
    """ "push" or "pull" when all transfers were such; "mixed" when they were not; "none" without any.

    Args:
        handoff: as `handoff_figures` gives them.
    """
    count, pushed = (handoff["transfers"], handoff["pushed"]) if handoff else (0, 0)
    return "none" if not count else "push" if pushed == count else "mixed" if pushed else "pull"


def handoff_figures(before: Sequence[EngineView], after: Sequence[EngineView]) -> dict[str, Any] | None:
    """What the hand-offs between two looks came to; None without any engine that has a peer.

    bytes, transfers and early_share (share of bytes that left before prefill ended) are of this run. exposed_ms (what a
    hand-off adds to the first token) has the percentiles of the latest minutes, as the posting engine tells them.
    """
    old = {engine.name: engine for engine in before}
    rows = [_delta(old.get(engine.name), engine) for engine in after if engine.handoff]
    if not rows:
        return None
    num_bytes = sum(row["bytes"] for row in rows)
    early = sum(row["early_bytes"] for row in rows)
    return {
        "transfers": sum(row["transfers"] for row in rows),
        "pushed": sum(row["pushed"] for row in rows),
        "bytes": num_bytes,
        "early_share": early / num_bytes if num_bytes else None,
        "fallbacks": sum(row["fallbacks"] for row in rows),
        "failures": sum(row["failures"] for row in rows),
        "exposed_ms": next((row["exposed_ms"] for row in rows if row["transfers"] and row["exposed_ms"]), None),
        "engines": rows,
    }


def _delta(old: EngineView | None, new: EngineView) -> dict[str, Any]:
    """Counters that went down belong to a new process: they count whole."""
    was: Mapping[str, Any] = old.handoff if old is not None else {}
    if was.get("engine_id") != new.handoff.get("engine_id"):
        was = {}
    return {
        "engine": new.name,
        "role": new.role,
        "transfers": _number(new.handoff, "num_transfers") - _number(was, "num_transfers"),
        "pushed": _number(new.handoff, "num_pushed") - _number(was, "num_pushed"),
        "bytes": _number(new.handoff, "num_bytes") - _number(was, "num_bytes"),
        "early_bytes": _early_bytes(new.handoff) - _early_bytes(was),
        "fallbacks": _number(new.handoff, "num_fallbacks") - _number(was, "num_fallbacks"),
        "failures": _failures(new.handoff) - _failures(was),
        "exposed_ms": new.handoff.get("exposed_ms"),
    }


def _early_bytes(handoff: Mapping[str, Any]) -> int:
    return round((handoff.get("early_share") or 0.0) * _number(handoff, "num_bytes"))


def _failures(handoff: Mapping[str, Any]) -> int:
    return sum((handoff.get("failures") or {}).values())


def _number(handoff: Mapping[str, Any], name: str) -> int:
    return int(handoff.get(name) or 0)


def _worker(row: Mapping[str, Any]) -> EngineView:
    return _view(str(row.get("id") or row.get("url")), row.get("role"), row.get("handoff"), row.get("facts"))


def _view(name: str, role: Any, handoff: Any, facts: Any) -> EngineView:
    handoff, facts = handoff or {}, facts or {}
    return EngineView(
        name=name,
        role=str(role or "mixed"),
        num_devices=int(handoff.get("tp_size") or 1) * int(handoff.get("pp_size") or 1),
        handoff=handoff,
        facts=facts,
    )


async def _json(client: Client, path: str) -> dict[str, Any]:
    try:
        found = await client.ask("GET", path, timeout_s=_TIMEOUT_S)
    except NoAnswerError:
        return {}
    return found if isinstance(found, dict) else {}
