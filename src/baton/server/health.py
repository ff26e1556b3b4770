"""What probes and load balancers ask: is it alive, does it take requests, how busy is it."""

from __future__ import annotations

from importlib.metadata import version

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from baton.server.engine_client import EngineState
from baton.server.state import state_of
from baton.web.errors import ApiError


async def health(http: HttpRequest) -> Response:
    """200 with an empty body while the engine lives (draining too), else 503."""
    state = state_of(http).engine.state
    if state in (EngineState.READY, EngineState.DRAINING):
        return Response()
    raise ApiError(503, f"the engine is {state.value}", retry=state is EngineState.STARTING)


async def live(http: HttpRequest) -> Response:
    """200 as long as the server process answers."""
    return Response()


async def ready(http: HttpRequest) -> Response:
    """200 while new requests are taken: not while the engine starts, while draining, or without an engine."""
    state_of(http).check_ready()
    return Response()


async def load(http: HttpRequest) -> Response:
    """Requests that are being answered, by vLLM's name."""
    return JSONResponse({"server_load": state_of(http).num_open})


async def show_version(http: HttpRequest) -> Response:
    """Version of this package."""
    return JSONResponse({"version": version("baton")})
