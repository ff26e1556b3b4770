"""What a person and a dashboard look at: the page at /, its figures at /stats, and /metrics. None asks for a key."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from baton.obs.metrics import CONTENT_TYPE
from baton.server.metrics import ServerMetrics
from baton.wire.engine import PeerInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The page as it is sent.

    Attributes:
        html: one document, its style and script inside.
        policy: the Content-Security-Policy that lets nothing but this style and this script run.
    """

    html: bytes
    policy: str


def load_page() -> Page:
    """Read the page that comes with the package."""
    html = resources.files("baton.server").joinpath("static/page.html").read_text(encoding="utf-8")
    return Page(html=html.encode(), policy=content_security_policy(html))


def content_security_policy(html: str) -> str:
    """The strictest policy under which a page with inline <style> and <script> elements works.

    Hashes are over the elements' text (Content Security Policy Level 3, section 6.7.2.3).
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hashes(html, 'script')}",
            f"style-src {_hashes(html, 'style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def _hashes(html: str, tag: str) -> str:
    texts = re.findall(rf"<{tag}>(.*?)</{tag}>", html, flags=re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def routes(
    metrics: ServerMetrics, *, chat: bool, state: Callable[[], str], peer: Callable[[], PeerInfo | None] = lambda: None
) -> list[Route]:
    """GET and HEAD of /, /stats and /metrics.

    Args:
        chat: the model has a chat template; without one the page offers completions only.
        state: the engine's state at this moment: "starting", "ready" or "dead".
        peer: what the engine is to others at this moment; another incarnation has another id.
    """
    page = load_page()
    headers = {
        "Content-Security-Policy": page.policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    served = served_facts(metrics, chat=chat)

    async def show_page(_: Request) -> Response:
        return Response(page.html, media_type="text/html; charset=utf-8", headers=headers)

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
