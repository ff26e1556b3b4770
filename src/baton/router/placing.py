"""What the path of a request needs of the fleet; `router/fleet.py` is the one that exists, tests have smaller ones."""

from __future__ import annotations

import asyncio
from typing import Protocol

from baton.router.demand import Demand
from baton.router.worker import Outcome, Placement, WorkerRef


class Hold(Protocol):
    """A leg's share of a worker: the fleet counts it until it is released.

    Attributes:
        lost: set when that incarnation of the worker is known to be gone or silent; the leg is then to be given up.
    """

    lost: asyncio.Event

    def landed(self) -> None:
        """The KV of this leg, a decode leg of two, has arrived. May be left out: release says it too."""

    def release(self, outcome: Outcome, error: str = "") -> None:
        """The leg has ended. A second call does nothing."""


class Placer(Protocol):
    """Chooses workers. Placing and holding are one step on the loop: nothing is awaited between the two."""

    async def place(self, demand: Demand, *, avoid: frozenset[str] = frozenset(), deadline_s: float) -> Placement:
        """Choose, and wait for room where all that fit are full.

        Args:
            avoid: ids of workers that failed this request already; taken only when there is no other.
            deadline_s: on the event loop's clock.

        Raises:
            ApiError: 404, no worker serves the model; 503, none that could is well; 429, too many wait; 504, the
                deadline has passed in the queue.
        """

    async def place_decode(
        self, demand: Demand, prefill: WorkerRef, *, avoid: frozenset[str] = frozenset(), deadline_s: float
    ) -> WorkerRef:
        """Choose the decode worker of a pull, which can pair with `prefill`; raises as `place`."""

    def hold(self, worker: WorkerRef, demand: Demand, *, transfer_id: str = "") -> Hold:
        """Count a leg that begins now."""
