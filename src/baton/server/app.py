"""Puts the HTTP application together."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route

from baton.core.errors import EngineDeadError, RequestError
from baton.server import handoff_route, health, models, page, text_routes, trace_route
from baton.server.chat import create_chat
from baton.server.completions import create_completion
from baton.server.config import ServerConfig
from baton.server.engine_client import EngineClient
from baton.server.metrics import ServerMetrics
from baton.server.state import ServerState
from baton.text.tokenizer import Tokenizer
from baton.web.errors import ApiError, ClientGoneError, on_client_gone, on_error
from baton.web.guard import Guard


def create_app(
    config: ServerConfig,
    engine: EngineClient,
    tokenizer: Tokenizer | None,
    metrics: ServerMetrics | None = None,
    extra_routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """The OpenAI-compatible API over one engine.

    Args:
        engine: started.
        tokenizer: None for a model without one: prompts are then token ids, and answers have no text.
        metrics: counts everything; with it come /, /stats and /metrics. The caller feeds it with the engine's outputs.
        extra_routes: looked at last.
    """
    state = ServerState(config, engine, tokenizer, metrics)
    routes: list[BaseRoute] = [*_routes()]
    if metrics is not None:
        routes += page.routes(metrics, engine, models=state.model_names, chat=state.has_chat)
    if engine.info.peer is not None:
        engine.on_output(state.traces.on_output)
        routes.append(Route("/handoffs/{transfer_id:path}", handoff_route.give_up, methods=["DELETE"]))
        routes.append(Route("/trace/{transfer_id:path}", trace_route.show_trace, methods=["GET"]))
    app = Starlette(
        routes=[*routes, *extra_routes],
        middleware=[Middleware(Guard, api_keys=config.api_keys)],
        exception_handlers={
            ApiError: on_error,
            RequestError: on_error,
            EngineDeadError: on_error,
            HTTPException: on_error,
            ClientGoneError: on_client_gone,
        },
    )
    app.router.redirect_slashes = False
    app.state.server = state
    return app


def _routes() -> list[Route]:
    return [
        Route("/v1/completions", create_completion, methods=["POST"]),
        Route("/v1/chat/completions", create_chat, methods=["POST"]),
        Route("/v1/models", models.list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", models.show_model, methods=["GET"]),
        Route("/tokenize", text_routes.tokenize, methods=["POST"]),
        Route("/detokenize", text_routes.detokenize, methods=["POST"]),
        Route("/tokenizer_info", text_routes.tokenizer_info, methods=["GET"]),
        Route("/health", health.health, methods=["GET"]),
        Route("/live", health.live, methods=["GET"]),
        Route("/ready", health.ready, methods=["GET"]),
        Route("/ping", health.health, methods=["GET", "POST"]),
        Route("/load", health.load, methods=["GET"]),
        Route("/version", health.show_version, methods=["GET"]),
    ]
