"""Memory of transfers that have ended, so that late messages about them start nothing."""

from __future__ import annotations

from enum import Enum


class Ending(Enum):
    """How a transfer ended on the giver's side."""

    SENT = "sent"
    NOT_NEEDED = "not needed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    EXPIRED = "expired"
    UNMATCHED = "unmatched"


class EndedTransfers:
    """Ended transfer ids and how they ended, for `memory_s` each: longer than any message about them can be under way.

    Args:
        memory_s: longer than the longest lease.
    """

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._ended: dict[str, tuple[Ending, float]] = {}  # in order of time

    def add(self, transfer_id: str, ending: Ending, now: float) -> None:
        """Remember an end; the first one stands."""
        self._ended.setdefault(transfer_id, (ending, now))

    def get(self, transfer_id: str) -> Ending | None:
        """How it ended; None if it is not known to have ended."""
        known = self._ended.get(transfer_id)
        return None if known is None else known[0]

    def forget(self, now: float) -> None:
        """Drop what is older than the memory."""
        while self._ended:
            transfer_id, (_, ended_s) = next(iter(self._ended.items()))
            if now - ended_s < self._memory_s:
                return
            del self._ended[transfer_id]
