"""Puts the router's HTTP application together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from baton.router.api import Generating
from baton.router.body import CHAT, COMPLETIONS
from baton.router.config import RouterConfig
from baton.router.desk import Desk
from baton.router.forward import Forwarding, Roster
from baton.router.http import Http
from baton.router.placing import Placer
from baton.router.record import Journal
from baton.router.tenants import Tenants
from baton.web.errors import ApiError, ClientGoneError, on_client_gone, on_error
from baton.web.guard import Guard


class Fleet(Placer, Roster, Protocol):
    """What the application needs of a fleet."""


def create_app(
    config: RouterConfig,
    fleet: Fleet,
    journal: Journal,
    http: Http,
    *,
    tenants: Tenants | None = None,
    extra_routes: Sequence[BaseRoute] = (),
) -> ASGIApp:
    """The OpenAI API over a fleet.

    Args:
        fleet: places requests; entered.
        journal: is told of every request.
        http: to the workers; closed by whoever made it, after the application.
        tenants: limits by API key.
        extra_routes: of the page, the figures and the fleet.
    """
    desk = Desk(config, fleet, http, journal)
    generating = Generating(desk, tenants)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await desk.close()

    others = Starlette(
        routes=[*Forwarding(fleet, http, config.max_body_bytes).routes, *extra_routes, *_only_post()],
        exception_handlers={ApiError: on_error, HTTPException: on_error, ClientGoneError: on_client_gone},
        lifespan=lifespan,
    )
    others.router.redirect_slashes = False

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        """Straight to what most requests ask for."""
        generates = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in (COMPLETIONS, CHAT)
        await (generating if generates else others)(scope, receive, send)

    return Guard(route, config.api_keys)


def _only_post() -> list[Route]:
    async def wrong_method(_: object) -> None:
        raise HTTPException(405, headers={"Allow": "POST"})

    return [Route(path, wrong_method, methods=["GET", "PUT", "PATCH", "DELETE"]) for path in (COMPLETIONS, CHAT)]
