"""What the page, /fleet and /metrics show of a fleet: plain values, copied from it at one moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from baton.core.handoff import Role
from baton.router.worker import WorkerFacts, WorkerGauges, WorkerState


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPanel:
    """One worker.

    Attributes:
        role: None while it is not known.
        facts: None until it answered once.
        breaker: "closed", "open" or "half-open".
        note: why it is not ready, in words; "" when it is.
        num_requests, num_tokens, inbound_tokens: what this router has sent it and not seen the end of.
        handoff: figures of its hand-offs, as its /stats tells them; empty without a peer.
        unpaired: id of a worker -> why the two are never paired, in words.
        api_key: that it asks for; never shown.
    """

    worker_id: str
    url: str
    state: WorkerState
    role: Role | None
    facts: WorkerFacts | None = None
    gauges: WorkerGauges = field(default_factory=WorkerGauges)
    breaker: str = "closed"
    note: str = ""
    num_requests: int = 0
    num_tokens: int = 0
    inbound_tokens: int = 0
    handoff: Mapping[str, Any] = field(default_factory=dict)
    unpaired: Mapping[str, str] = field(default_factory=dict)
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPanel:
    """All workers, and how many requests wait for one.

    Attributes:
        mode: "push", "pull" or "auto", as the router was told.
    """

    workers: tuple[WorkerPanel, ...] = ()
    num_queued: int = 0
    mode: str = "auto"


ShowFleet = Callable[[], FleetPanel]
