"""A fleet that does not change: requests go to the first workers that are not to be avoided."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from baton.core.handoff import Role, TransferMode
from baton.router.config import RouterConfig
from baton.router.demand import Demand
from baton.router.http import Http
from baton.router.worker import Outcome, Placement, WorkerFacts, WorkerKind, WorkerRef
from baton.web.errors import ApiError
from baton.wire.engine import PeerInfo
from tests.router.routed import MakeFleet


def worker(url: str, role: Role, kind: WorkerKind = WorkerKind.BATON, **facts: Any) -> WorkerRef:
    """A worker that is known well; its control endpoint is made up."""
    name = url.rpartition("/")[2]
    peer = PeerInfo(role=role, engine_id=f"engine-{name}", host="10.0.0.7", port=5600, tp_size=2)
    modes = frozenset(TransferMode)
    known = {"kind": kind, "incarnation": "1", "role": role, "transfer_modes": modes, "peer": peer, **facts}
    return WorkerRef(worker_id=name, url=url, facts=WorkerFacts(**{"max_model_len": 2048, "models": ("m",), **known}))


@dataclass
class Taken:
    """A hold. outcome: None while it lasts."""

    worker_id: str
    transfer_id: str
    lost: asyncio.Event
    outcome: Outcome | None = None
    has_landed: bool = False

    def landed(self) -> None:
        self.has_landed = True

    def release(self, outcome: Outcome, error: str = "") -> None:
        self.outcome = self.outcome or outcome


@dataclass
class FixedPlacer:
    """Places every splittable request in `mode`.

    Attributes:
        full: decode workers have no room while it is set: pulls wait for one.
        demands, avoided: of every placement.
        taken: all holds so far.
    """

    prefills: Sequence[WorkerRef]
    decodes: Sequence[WorkerRef]
    mode: TransferMode | None
    full: asyncio.Event = field(default_factory=asyncio.Event)
    demands: list[Demand] = field(default_factory=list)
    avoided: list[frozenset[str]] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    lost: dict[str, asyncio.Event] = field(default_factory=dict)

    async def place(self, demand: Demand, *, avoid: frozenset[str] = frozenset(), deadline_s: float) -> Placement:
        self.demands.append(demand)
        self.avoided.append(avoid)
        if not demand.splittable or self.mode is None:
            return Placement(prefill=None, decode=self._pick(self.decodes, avoid), mode=None)
        prefill = self._pick(self.prefills, avoid)
        if self.mode is TransferMode.PULL:
            return Placement(prefill=prefill, decode=None, mode=self.mode)
        return Placement(prefill=prefill, decode=self._pick(self.decodes, avoid), mode=self.mode)

    async def place_decode(
        self, demand: Demand, prefill: WorkerRef, *, avoid: frozenset[str] = frozenset(), deadline_s: float
    ) -> WorkerRef:
        while self.full.is_set():
            await asyncio.sleep(0.01)
        return self._pick(self.decodes, avoid)

    def hold(self, worker: WorkerRef, demand: Demand, *, transfer_id: str = "") -> Taken:
        lost = self.lost.setdefault(worker.worker_id, asyncio.Event())
        self.taken.append(Taken(worker.worker_id, transfer_id, lost))
        return self.taken[-1]

    def ready(self) -> list[WorkerRef]:
        return [*self.prefills, *self.decodes]

    def outcomes(self) -> list[tuple[str, str]]:
        """(worker, outcome) of every leg, in the order of their begin."""
        return [(each.worker_id, "" if each.outcome is None else each.outcome.value) for each in self.taken]

    def _pick(self, workers: Sequence[WorkerRef], avoid: frozenset[str]) -> WorkerRef:
        if not workers:
            raise ApiError(503, "no worker is well", retry=True)
        return next((each for each in workers if each.worker_id not in avoid), workers[0])


def fixed(prefills: Sequence[WorkerRef], decodes: Sequence[WorkerRef], mode: TransferMode | None) -> MakeFleet:
    """For `routed`."""

    @asynccontextmanager
    async def make(config: RouterConfig, http: Http) -> Any:
        yield FixedPlacer(prefills, decodes, mode)

    return make
