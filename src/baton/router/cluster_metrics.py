"""GET /metrics/cluster: the metrics of all workers, asked at once, in one text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from baton.obs.family import Family
from baton.obs.log import get_logger
from baton.obs.metrics import FamilyExposition
from baton.router.exposition import merge_expositions
from baton.router.http import Http, HttpError
from baton.router.panel import WorkerPanel

_log = get_logger(__name__)
_TIMEOUT_S = 2.0
_MAX_BYTES = 8 << 20


async def cluster_metrics(http: Http, workers: Sequence[WorkerPanel]) -> bytes:
    """The text. `baton_router_worker_scraped` says which workers answered within 2 s."""
    texts = await asyncio.gather(*(_scrape(http, worker) for worker in workers))
    scraped = Family(
        name="baton_router_worker_scraped",
        help_text="1 when the worker's metrics are part of this answer.",
        labels=("worker",),
        values=[((worker.worker_id,), text is not None) for worker, text in zip(workers, texts, strict=True)],
    )
    answered = {worker.worker_id: text for worker, text in zip(workers, texts, strict=True) if text is not None}
    merged = await asyncio.to_thread(merge_expositions, answered)
    return FamilyExposition(lambda: [scraped], process=False).render() + merged.encode()


async def _scrape(http: Http, worker: WorkerPanel) -> str | None:
    try:
        reply = await http.fetch("GET", f"{worker.url}/metrics", timeout_s=_TIMEOUT_S)
    except HttpError as error:
        _log.debug("no metrics of %s: %s", worker.worker_id, error)
        return None
    if reply.status != 200 or len(reply.body) > _MAX_BYTES:
        return None
    return reply.body.decode(errors="replace")
