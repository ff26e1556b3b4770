"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from baton.server.state import ServerState, state_of
from baton.wire.openai.text import ModelCard, ModelList


async def list_models(http: HttpRequest) -> Response:
    """Every served name."""
    server = state_of(http)
    cards = [_card(server, name) for name in server.model_names]
    return Response(msgspec.json.encode(ModelList(data=cards)), media_type="application/json")


async def show_model(http: HttpRequest) -> Response:
    """One served name; 404 for another. Names may contain slashes."""
    server = state_of(http)
    name = server.check_model(http.path_params["name"])
    return Response(msgspec.json.encode(_card(server, http.path_params["name"] or name)), media_type="application/json")


def _card(server: ServerState, name: str) -> ModelCard:
    info = server.engine.info
    return ModelCard(id=name, created=server.started_s, root=info.model, max_model_len=info.max_model_len)
