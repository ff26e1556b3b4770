"""Posted transfers that have not ended, by the hand-off they belong to, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from baton.core.exchange import TransferRecord
from baton.core.handoff import TransferMode
from baton.transfer.agent import Agent, Direction, Ended, Moves, Post


@dataclass(slots=True)
class Cost:
    """Sums over the posts of one hand-off, as in core.exchange.TransferRecord. *_s of moments: on the clock."""

    num_bytes: int = 0
    num_descriptors: int = 0
    post_s: float = 0.0
    wire_s: float = 0.0
    first_post_s: float = 0.0
    last_end_s: float = 0.0

    def record(
        self, transfer_id: str, mode: TransferMode, *, exposed_s: float, early_bytes: int, clock_offset_s: float
    ) -> TransferRecord:
        """The sums as a record. clock_offset_s: added to the clock it gives seconds since the epoch."""
        moved = self.num_descriptors > 0
        return TransferRecord(
            transfer_id=transfer_id,
            mode=mode,
            num_bytes=self.num_bytes,
            num_descriptors=self.num_descriptors,
            post_s=self.post_s,
            wire_s=self.wire_s,
            exposed_s=max(0.0, exposed_s),
            early_bytes=early_bytes,
            started_s=self.first_post_s + clock_offset_s if moved else None,
            ended_s=self.last_end_s + clock_offset_s if moved else None,
        )


def _no_fence(now: float) -> None:
    """Whoever is written to waits."""


class _Flight(NamedTuple):
    transfer_id: str
    pin: int
    posted_s: float


@dataclass(slots=True)
class Flights:
    """Posts of one side, giver or taker, through one agent.

    Args:
        clock: seconds, monotonic.
        fence: called with its time right before a post; raises AgentError if nothing may be posted any more.
    """

    agent: Agent
    clock: Callable[[], float]
    fence: Callable[[float], None] = _no_fence
    _flights: dict[Post, _Flight] = field(default_factory=dict)
    _costs: dict[str, Cost] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._flights)

    def post(
        self, transfer_id: str, pin: int, direction: Direction, peer: str, moves: Moves, notice: bytes | None = None
    ) -> None:
        """Post on behalf of a hand-off; `pin` names the local blocks.

        Raises:
            AgentError: nothing was started.
        """
        start_s = self.clock()
        self.fence(start_s)
        post = self.agent.post(direction, peer, moves, notice)
        posted_s = self.clock()
        self._flights[post] = _Flight(transfer_id, pin, start_s)
        cost = self.cost(transfer_id)
        cost.first_post_s = cost.first_post_s or start_s
        cost.num_bytes += int(moves[:, 2].sum())
        cost.num_descriptors += len(moves)
        cost.post_s += posted_s - start_s

    def ended(self, ended: Ended) -> str | None:
        """A post is over: the hand-off it belonged to; None if it was none of these."""
        flight = self._flights.pop(ended.post, None)
        if flight is None:
            return None
        cost = self.cost(flight.transfer_id)
        cost.last_end_s = self.clock()
        cost.wire_s += cost.last_end_s - flight.posted_s
        return flight.transfer_id

    def pins(self, transfer_id: str) -> set[int]:
        """Pins of a hand-off that a post still touches."""
        return {flight.pin for flight in self._flights.values() if flight.transfer_id == transfer_id}

    def cost(self, transfer_id: str) -> Cost:
        """What a hand-off cost so far."""
        return self._costs.setdefault(transfer_id, Cost())

    def forget(self, transfer_id: str) -> Cost:
        """The hand-off is over, no post of it is in flight: its cost, for the last time."""
        assert not self.pins(transfer_id), f"transfer {transfer_id} ends with posts in flight"
        return self._costs.pop(transfer_id, Cost())
