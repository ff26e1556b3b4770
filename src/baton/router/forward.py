"""What the router answers for its workers: the models they serve, their tokenizers, and whether any is there."""

from __future__ import annotations

import asyncio
import random
from importlib.metadata import version
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from baton.router.desk import headers_for
from baton.router.http import Http, HttpError
from baton.router.worker import WorkerRef
from baton.web.errors import ApiError
from baton.web.limits import BodyReader

_TIMEOUT_S = 5.0
_TEXT_S = 30.0


class Roster(Protocol):
    """Knows the workers."""

    def ready(self) -> list[WorkerRef]:
        """Those that take requests."""


class _Named(msgspec.Struct):
    model: str | None = None


class Forwarding:
    """Handlers of the routes that need some worker.

    Args:
        max_body_bytes: of a request.
    """

    def __init__(self, roster: Roster, http: Http, max_body_bytes: int) -> None:
        self._roster = roster
        self._http = http
        self._bodies = BodyReader(max_body_bytes)

    @property
    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("/v1/models", self._list_models, methods=["GET"]),
            Route("/v1/models/{name:path}", self._show_model, methods=["GET"]),
            Route("/tokenize", self._pass_on, methods=["POST"]),
            Route("/detokenize", self._pass_on, methods=["POST"]),
            Route("/tokenizer_info", self._pass_on, methods=["GET"]),
            Route("/health", self._ready, methods=["GET"]),
            Route("/ready", self._ready, methods=["GET"]),
            Route("/ping", self._ready, methods=["GET", "POST"]),
            Route("/live", _live, methods=["GET"]),
            Route("/version", _version, methods=["GET"]),
        ]

    async def _list_models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": await self._models(request)})

    async def _show_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        for model in await self._models(request):
            if model["id"] == name:
                return JSONResponse(model)
        raise ApiError(404, f"no worker serves the model {name!r}; see /v1/models", param="model")

    async def _models(self, request: Request) -> list[dict[str, Any]]:
        """Of all workers, each name once."""
        workers = self._workers()
        answers = await asyncio.gather(*(self._ask_models(worker, request) for worker in workers))
        if not any(answers):
            raise ApiError(503, "no worker says which models it serves", retry=True)
        found = {model["id"]: model for answer in answers for model in answer}
        return list(found.values())

    async def _ask_models(self, worker: WorkerRef, request: Request) -> list[dict[str, Any]]:
        headers = headers_for(worker, _authorization(request))
        try:
            answer = await self._http.get_json(f"{worker.url}/v1/models", timeout_s=_TIMEOUT_S, headers=headers)
            return [model for model in answer["data"] if isinstance(model["id"], str)]
        except (HttpError, KeyError, TypeError):
            return []

    async def _pass_on(self, request: Request) -> Response:
        """One worker that serves the model answers."""
        body = await self._bodies.read(request)
        worker = random.choice(self._serving(_model_of(body)))
        headers = headers_for(worker, {"content-type": "application/json", **_authorization(request)})
        try:
            reply = await self._http.fetch(
                request.method, worker.url + request.url.path, timeout_s=_TEXT_S, headers=headers, body=body or None
            )
        except HttpError as error:
            raise ApiError(503, f"worker {worker.worker_id}: {error}", retry=True) from error
        media_type = reply.headers.get("content-type", "application/json")
        return Response(reply.body, reply.status, media_type=media_type)

    async def _ready(self, _: Request) -> Response:
        """200 while there is a worker."""
        self._workers()
        return Response()

    def _serving(self, model: str | None) -> list[WorkerRef]:
        workers = self._workers()
        found = [worker for worker in workers if not (model and worker.facts.models) or model in worker.facts.models]
        if not found:
            raise ApiError(404, f"no worker serves the model {model!r}; see /v1/models", param="model")
        return found

    def _workers(self) -> list[WorkerRef]:
        workers = self._roster.ready()
        if not workers:
            raise ApiError(503, "no worker is ready", retry=True)
        return workers


def _authorization(request: Request) -> dict[str, str]:
    value = request.headers.get("authorization")
    return {} if value is None else {"authorization": value}


def _model_of(body: bytes) -> str | None:
    try:
        return msgspec.json.decode(body, type=_Named).model
    except msgspec.DecodeError:
        return None


async def _live(_: Request) -> Response:
    return Response()


async def _version(_: Request) -> Response:
    return JSONResponse({"version": version("baton")})
