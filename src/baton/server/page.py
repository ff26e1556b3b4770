"""What a person and a dashboard look at: the page at /, its figures at /stats, and /metrics. None asks for a key."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from baton.obs.metrics import CONTENT_TYPE
from baton.server.engine_client import EngineClient
from baton.server.metrics import ServerMetrics
from baton.server.stats import stats_body
from baton.web.page import load_page


def routes(metrics: ServerMetrics, engine: EngineClient, *, models: Sequence[str], chat: bool) -> list[Route]:
    """GET and HEAD of /, /stats and /metrics.

    Args:
        models: names it is served under.
        chat: the model has a chat template; without one the page offers completions only.
    """
    page = load_page("baton.server")

    async def show_page(_: Request) -> Response:
        return Response(page.html, media_type="text/html; charset=utf-8", headers=page.headers)

    async def show_stats(_: Request) -> Response:
        body = stats_body(metrics, engine, models=models, chat=chat)
        return JSONResponse(body, headers={"Cache-Control": "no-store"})

    async def show_metrics(_: Request) -> Response:
        return Response(metrics.exposition(), headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})

    return [
        Route("/", show_page, methods=["GET"], include_in_schema=False),
        Route("/stats", show_stats, methods=["GET"]),
        Route("/metrics", show_metrics, methods=["GET"]),
    ]
