"""What a look at a worker says: from the JSON it answered to facts and gauges. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from baton.core.handoff import Role, TransferMode
from baton.router.worker import WorkerFacts, WorkerGauges, WorkerKind, WorkerSpec, WorkerState
from baton.wire.engine import PeerInfo

_STATES = {"ready": WorkerState.READY, "draining": WorkerState.DRAINING, "starting": WorkerState.STARTING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A worker that answered.

    Attributes:
        facts: their `incarnation` is "" when it does not tell.
        engine_silent_s: since the engine behind it said anything.
        handoff: figures of its hand-offs, as it tells them.
    """

    facts: WorkerFacts
    state: WorkerState = WorkerState.READY
    gauges: WorkerGauges = field(default_factory=WorkerGauges)
    engine_silent_s: float = 0.0
    handoff: Mapping[str, Any] = field(default_factory=dict)


def read_stats(body: Any, now: float) -> Look | None:
    """A worker's answer at /stats; None when it is not Baton's. What is missing or odd counts as not told."""
    if not isinstance(body, dict) or not isinstance(body.get("served"), dict) or "state" not in body:
        return None
    served, handoff = body["served"], _section(body, "handoff")
    peer = _peer(handoff)
    facts = WorkerFacts(
        kind=WorkerKind.BATON,
        incarnation=_text(served, "incarnation") or (peer.engine_id if peer else ""),
        role=peer.role if peer else _role(served),
        transfer_modes=frozenset(peer.transfer_modes if peer else ()),
        peer=peer,
        models=_names(served),
        fingerprint=_text(served, "fingerprint"),
        block_tokens=_count(served, "block_tokens"),
        num_blocks=_count(served, "num_blocks"),
        max_num_seqs=_count(served, "max_num_seqs"),
        max_model_len=_count(served, "max_model_len"),
    )
    silent_s = body.get("engine_silent_s", 0.0)
    return Look(
        facts=facts,
        state=_STATES.get(str(body["state"]), WorkerState.DOWN),
        gauges=_gauges(_section(body, "pools"), now),
        engine_silent_s=float(silent_s) if isinstance(silent_s, int | float) else 0.0,
        handoff=handoff,
    )


def other_server(spec: WorkerSpec, models: tuple[str, ...]) -> Look:
    """A server of others that is well: its facts are what its spec says, and the names it serves."""
    role = spec.role or Role.MIXED
    modes = () if role is Role.MIXED else (spec.transfer_mode or TransferMode.PULL,)
    facts = WorkerFacts(
        kind=WorkerKind.OPENAI,
        incarnation="",
        role=role,
        transfer_modes=frozenset(modes),
        peer=spec.peer,
        models=models,
    )
    return Look(facts=facts)


def read_models(body: Any) -> tuple[str, ...]:
    """The names in an answer of GET /v1/models; none when it is not one."""
    entries = body.get("data") if isinstance(body, dict) else None
    if not isinstance(entries, list):
        return ()
    names = (entry.get("id") for entry in entries if isinstance(entry, dict))
    return tuple(name for name in names if isinstance(name, str))


def _peer(handoff: Mapping[str, Any]) -> PeerInfo | None:
    told = {name: handoff[name] for name in PeerInfo.__struct_fields__ if name in handoff}
    try:
        return msgspec.convert(told, PeerInfo)
    except msgspec.ValidationError:
        return None


def _role(served: Mapping[str, Any]) -> Role:
    try:
        return Role(served.get("role"))
    except ValueError:
        return Role.MIXED


def _names(served: Mapping[str, Any]) -> tuple[str, ...]:
    told = served.get("models")
    names = told if isinstance(told, list) else [served.get("model")]
    return tuple(name for name in names if isinstance(name, str) and name)


def _gauges(pools: Mapping[str, Any], now: float) -> WorkerGauges:
    names = [name for name in WorkerGauges.__slots__ if name != "read_s"]
    return WorkerGauges(read_s=now, **{name: _count(pools, name) for name in names})


def _section(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = body.get(name)
    return found if isinstance(found, dict) else {}


def _text(section: Mapping[str, Any], name: str) -> str:
    found = section.get(name)
    return found if isinstance(found, str) else ""


def _count(section: Mapping[str, Any], name: str) -> int:
    found = section.get(name)
    return found if isinstance(found, int) and found >= 0 else 0
