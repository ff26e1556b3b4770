"""What a person and a dashboard look at: the page at /, its figures at /stats, and /metrics. None asks for a key."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from baton.obs.metrics import CONTENT_TYPE
from baton.server.metrics import ServerMetrics
from baton.web.page import load_page
from baton.wire.engine import PeerInfo


def routes(
    metrics: ServerMetrics, *, chat: bool, state: Callable[[], str], peer: Callable[[], PeerInfo | None] = lambda: None
) -> list[Route]:
    """GET and HEAD of /, /stats and /metrics.

    Args:
        chat: the model has a chat template; without one the page offers completions only.
        state: the engine's state at this moment: "starting", "ready" or "dead".
        peer: what the engine is to others at this moment; another incarnation has another id.
    """
    page = load_page("baton.server")
    served = served_facts(metrics, chat=chat)

    async def show_page(_: Request) -> Response:
        return Response(page.html, media_type="text/html; charset=utf-8", headers=page.headers)

    async def show_stats(_: Request) -> Response:
        body = {"state": state(), "served": served, **metrics.snapshot()}
        known, figures = peer(), metrics.handoff_snapshot()
        if known is not None and figures is not None:
            body["handoff"] = {**msgspec.to_builtins(known), **figures}
        return JSONResponse(body, headers={"Cache-Control": "no-store"})

    async def show_metrics(_: Request) -> Response:
        return Response(metrics.exposition(), headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})

    return [
        Route("/", show_page, methods=["GET"], include_in_schema=False),
        Route("/stats", show_stats, methods=["GET"]),
        Route("/metrics", show_metrics, methods=["GET"]),
    ]


def served_facts(metrics: ServerMetrics, *, chat: bool) -> dict[str, object]:
    """What is served, as /stats tells the page. Lengths in tokens."""
    info = metrics.info
    return {
        "model": metrics.model_name,
        "architecture": info.architecture,
        "dtype": info.dtype,
        "device": info.device,
        "max_model_len": info.max_model_len,
        "max_num_seqs": info.max_num_seqs,
        "kv_cache_tokens": info.kv_cache_tokens,
        "block_tokens": info.block_tokens,
        "chat": chat,
        "version": version("baton"),
    }
