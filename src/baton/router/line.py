"""The line: requests that wait for room, each behind those of its kind that came first. Nothing polls."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from itertools import count
from typing import TypeVar

from baton.web.errors import ApiError

T = TypeVar("T")
Rank = tuple[int, ...]


class _Waiter:
    """order: (rank, number of arrival); less goes first."""

    __slots__ = ("left", "order", "turn")

    def __init__(self, order: tuple[Rank, int]) -> None:
        self.order = order
        self.turn = asyncio.Event()
        self.left = False

    def __lt__(self, other: _Waiter) -> bool:
        return self.order < other.order


class Line:
    """Used on one event loop.

    Requests that can go to the same workers are of one kind, and served in (rank, arrival) order: a long prompt at the
    head is not overtaken for ever by short ones. Kinds do not wait for one another.

    Args:
        max_waiting: one more is refused.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._numbers = count()
        self._kinds: dict[Hashable, list[_Waiter]] = {}
        self._by_rank: Counter[int] = Counter()
        self.num_waiting = 0

    async def enter(
        self, kind: Hashable, rank: Rank, attempt: Callable[[], T | None], *, deadline_s: float, must_wait: bool = False
    ) -> T:
        """What `attempt` gives, once it gives something.

        `attempt` runs in the caller's task, and nothing is awaited between it and the return: what it promises can be
        taken before another one attempts.

        Args:
            attempt: called at once unless others of its kind wait, and then each time when there may be room. What it
                raises ends the wait.
            deadline_s: on the event loop's clock.
            must_wait: not refused, however many wait.

        Raises:
            ApiError: 429, too many wait; 504, the deadline has passed.
        """
        head = self._head(kind)
        if head is None or rank < head.order[0]:
            found = attempt()
            if found is not None:
                return found
        if self.num_waiting >= self._max_waiting and not must_wait:
            raise ApiError(429, f"all workers are full and {self.num_waiting} requests wait; try again", retry=True)
        return await self._wait(kind, rank, attempt, deadline_s)

    def num_waiting_of(self, rank: int) -> int:
        """Those whose rank begins so."""
        return self._by_rank[rank]

    def wake(self) -> None:
        """There may be room, or no hope any more: the first of each kind attempts, in order."""
        heads = [head for kind in list(self._kinds) if (head := self._head(kind)) is not None]
        for head in sorted(heads):
            head.turn.set()

    async def _wait(self, kind: Hashable, rank: Rank, attempt: Callable[[], T | None], deadline_s: float) -> T:
        waiter = _Waiter((rank, next(self._numbers)))
        heappush(self._kinds.setdefault(kind, []), waiter)
        self.num_waiting += 1
        self._by_rank[rank[0]] += 1
        try:
            while True:
                async with asyncio.timeout_at(deadline_s):
                    await waiter.turn.wait()
                waiter.turn.clear()
                found = attempt()
                if found is not None:
                    return found
        except TimeoutError:
            raise ApiError(504, "no worker had room before the request's deadline") from None
        finally:
            waiter.left = True
            self.num_waiting -= 1
            self._by_rank[rank[0]] -= 1
            self._head(kind)
            asyncio.get_running_loop().call_soon(self.wake)  # when the caller has taken what it got

    def _head(self, kind: Hashable) -> _Waiter | None:
        """The first of a kind that still waits."""
        waiters = self._kinds.get(kind, [])
        while waiters and waiters[0].left:
            heappop(waiters)
        if not waiters:
            self._kinds.pop(kind, None)
            return None
        return waiters[0]
