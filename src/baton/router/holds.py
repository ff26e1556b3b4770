"""What the path of a request holds of a worker while a leg runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from baton.obs.log import get_logger
from baton.router.member import Life
from baton.router.worker import Outcome, Share, WorkerRef

_log = get_logger(__name__)


class FleetHold:
    """A share of a worker's incarnation. See placing.Hold.

    Args:
        on_release: called once, after the share was given back.
    """

    __slots__ = ("_decides", "_life", "_loop", "_on_release", "_share", "_worker", "lost")

    def __init__(self, worker: WorkerRef, life: Life, share: Share, on_release: Callable[[Outcome], None]) -> None:
        self._worker = worker
        self._life = life
        self._loop = asyncio.get_running_loop()
        self._share: Share | None = share
        self._on_release = on_release
        self._decides = life.begin(share, self._loop.time())
        self.lost = life.lost

    def landed(self) -> None:
        """See placing.Hold."""
        if self._share is not None:
            self._share = self._life.landed(self._share)

    def release(self, outcome: Outcome, error: str = "") -> None:
        """See placing.Hold."""
        if self._share is None:
            return
        if outcome is Outcome.FAILED:
            _log.warning("worker %s: a request failed: %s", self._worker.worker_id, error or "it gave no reason")
        self._life.end(self._share, outcome, self._loop.time(), decides=self._decides)
        self._share = None
        self._on_release(outcome)


class LostHold:
    """Of an incarnation that is over already."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.lost.set()

    def landed(self) -> None:
        """Does nothing."""

    def release(self, outcome: Outcome, error: str = "") -> None:
        """Does nothing."""
