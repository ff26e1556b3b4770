"""Rows of the runner's tables, lowest first, so that the tables in use stay dense."""

from __future__ import annotations

import heapq


class Slots:
    """Free and taken slots 0 .. count - 1.

    A slot needs no fence: only steps touch its rows, and they run in order, an admission's overwrite included.
    (Recurrent state is a page of its own, under the pool's fence.)
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))
        self._taken: set[int] = set()

    @property
    def num_free(self) -> int:
        """Slots that can be taken."""
        return len(self._free)

    def take(self) -> int:
        """Take the lowest free slot; there must be one."""
        assert self._free, "no free slot"
        slot = heapq.heappop(self._free)
        self._taken.add(slot)
        return slot

    def give_back(self, slot: int) -> None:
        """Free a taken slot."""
        assert slot in self._taken, f"slot {slot} is not taken"
        self._taken.remove(slot)
        heapq.heappush(self._free, slot)

    def taken(self) -> frozenset[int]:
        """Slots in use."""
        return frozenset(self._taken)
