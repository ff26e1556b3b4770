"""What a person and a dashboard look at: the page at /, /fleet and its events, /metrics, /metrics/cluster, /trace.

    page = FleetPage(journal, show_fleet, http)
    routes += page.routes
    ...
    page.close()  # when the router begins to drain: pages that follow it would keep it waiting

`show_fleet` copies the fleet as it is at this moment. / and /metrics tell nothing of single requests, so they may be
open; the others name requests and are to be guarded by API key, where there is one: the page asks for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from baton.obs.metrics import CONTENT_TYPE, FamilyExposition
from baton.router.cluster_metrics import cluster_metrics
from baton.router.events import FleetEvents
from baton.router.figures import WINDOWS_S, RouterFigures
from baton.router.fleet_json import latest, request_rows, troubled, worker_row
from baton.router.http import Http
from baton.router.links import ByteRates, link_rows, moved_bytes
from baton.router.metrics import families
from baton.router.panel import ShowFleet
from baton.router.record import Journal
from baton.router.trace_route import show_trace
from baton.web.errors import ApiError
from baton.web.page import load_page

_SHOWN = 50
_TROUBLED = 20
_LINKS_S = 60
_NO_STORE = {"Cache-Control": "no-store"}


class FleetPage:
    """The router's page and its data.

    Args:
        http: asks workers for their metrics and traces.
        clock: seconds since the epoch, that of the journal's records.
    """

    def __init__(
        self, journal: Journal, show_fleet: ShowFleet, http: Http, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.figures = RouterFigures()
        journal.on_end(self.figures.observe)
        self._journal = journal
        self._show_fleet = show_fleet
        self._http = http
        self._clock = clock
        self._start_s = clock()
        self._rates = ByteRates()
        self._page = load_page("baton.router")
        self._events = FleetEvents(lambda: msgspec.json.encode(self.snapshot()))
        self._exposition = FamilyExposition(lambda: families(self.figures, show_fleet(), len(journal.live)))

    @property
    def routes(self) -> list[Route]:
        """GET (and HEAD) of each."""
        return [
            Route("/", self._show_page, methods=["GET"], include_in_schema=False),
            Route("/fleet", self._show_fleet_json, methods=["GET"]),
            Route("/fleet/events", self._events.respond, methods=["GET"]),
            Route("/metrics", self._show_metrics, methods=["GET"]),
            Route("/metrics/cluster", self._show_cluster_metrics, methods=["GET"]),
            Route("/trace/{transfer_id:path}", self._show_trace, methods=["GET"]),
        ]

    @property
    def num_viewers(self) -> int:
        """Pages that follow now."""
        return self._events.num_viewers

    def close(self) -> None:
        """End the pages' event streams."""
        self._events.close()

    def snapshot(self, num_requests: int = _SHOWN) -> dict[str, Any]:
        """The body of GET /fleet, as of now."""
        now, panel = self._clock(), self._show_fleet()
        rates = self._rates.rates(moved_bytes(panel), now)
        return {
            "time_s": now,
            "router": {
                "mode": panel.mode,
                "uptime_s": now - self._start_s,
                "live": len(self._journal.live),
                "queued": panel.num_queued,
            },
            "workers": [worker_row(worker, rates.get(worker.worker_id)) for worker in panel.workers],
            "links": link_rows(self.figures.links(_LINKS_S, now), rates, _LINKS_S),
            "figures": {str(window_s): self.figures.window(window_s, now) for window_s in WINDOWS_S},
            "requests": request_rows(latest(self._journal, num_requests), now),
            "troubled": request_rows(islice(filter(troubled, self._journal.recent()), _TROUBLED), now),
        }

    async def _show_page(self, _: Request) -> Response:
        return Response(self._page.html, media_type="text/html; charset=utf-8", headers=self._page.headers)

    async def _show_fleet_json(self, request: Request) -> Response:
        given = request.query_params.get("requests", str(_SHOWN))
        if not (given.isascii() and given.isdigit() and len(given) < 6):
            raise ApiError(400, f"requests must be a number from 0 to 99999, got {given[:20]!r}", param="requests")
        body = msgspec.json.encode(self.snapshot(int(given)))
        return Response(body, media_type="application/json", headers=_NO_STORE)

    async def _show_metrics(self, _: Request) -> Response:
        return Response(self._exposition.render(), headers={"Content-Type": CONTENT_TYPE, **_NO_STORE})

    async def _show_cluster_metrics(self, _: Request) -> Response:
        text = await cluster_metrics(self._http, self._show_fleet().workers)
        return Response(text, headers={"Content-Type": CONTENT_TYPE, **_NO_STORE})

    async def _show_trace(self, request: Request) -> Response:
        workers = {worker.worker_id: worker for worker in self._show_fleet().workers}
        transfer_id = request.path_params["transfer_id"]
        document = await show_trace(self._journal, workers, self._http, transfer_id, self._clock())
        return Response(msgspec.json.encode(document), media_type="application/json", headers=_NO_STORE)
