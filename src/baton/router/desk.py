"""What all requests of a router share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import quote

from baton.obs.log import get_logger
from baton.router.config import RouterConfig
from baton.router.http import Http, HttpError
from baton.router.interrupt import Lookout
from baton.router.placing import Placer
from baton.router.record import Journal
from baton.router.worker import WorkerKind, WorkerRef

_log = get_logger(__name__)
_WITHDRAW_S = 2.0


class Desk:
    """One for each router, on one event loop.

    Args:
        http: closed by whoever made it.
    """

    def __init__(self, config: RouterConfig, placer: Placer, http: Http, journal: Journal) -> None:
        self.config = config
        self.placer = placer
        self.http = http
        self.journal = journal
        self.lookout = Lookout()
        self._errands: set[asyncio.Task[None]] = set()

    def withdraw(self, worker: WorkerRef, transfer_id: str, headers: Mapping[str, str]) -> None:
        """Nobody will come for what a prefill worker keeps under this id; it need not wait for its lease to end."""
        if worker.facts.kind is not WorkerKind.BATON:
            return
        task = asyncio.get_running_loop().create_task(self._withdraw(worker, transfer_id, headers))
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def close(self) -> None:
        """After the last request: what was said to workers is said, and nothing is waited for any more."""
        await asyncio.gather(*self._errands)
        await self.lookout.close()

    async def _withdraw(self, worker: WorkerRef, transfer_id: str, headers: Mapping[str, str]) -> None:
        try:
            url = f"{worker.url}/handoffs/{quote(transfer_id, safe='')}"
            await self.http.fetch("DELETE", url, timeout_s=_WITHDRAW_S, headers=headers_for(worker, headers))
        except HttpError as error:
            _log.info("worker %s was not told that nobody needs %s: %s", worker.worker_id, transfer_id, error)


def headers_for(worker: WorkerRef, headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers of a request to a worker: it may ask for a key of its own."""
    if worker.api_key is None:
        return headers
    return {**headers, "authorization": f"Bearer {worker.api_key}"}
