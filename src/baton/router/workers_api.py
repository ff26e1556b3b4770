"""The fleet changed at run time, by holders of an admin key, or, where there is none, by programs on this machine.

    POST   /workers              {"url": ..., "role"?, "transfer_mode"?, "api_key"?, "peer"?, "lease"?}
    GET    /workers
    POST   /workers/{id}/drain
    DELETE /workers/{id}         drains first; with ?now=1 not

An id is the worker's URL, percent-encoded or not, or the host and port in it.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from baton.core.errors import ConfigError
from baton.router.fleet import Fleet
from baton.router.fleet_json import worker_row
from baton.router.member import Member
from baton.router.naming import Registration
from baton.router.panel import WorkerPanel
from baton.router.worker import WorkerSpec
from baton.web.errors import ApiError, ClientGoneError, on_client_gone, on_error
from baton.web.guard import Guard
from baton.web.limits import BodyReader

_PATH = "/workers"
_MAX_BYTES = 1 << 16
_NO_STORE = {"Cache-Control": "no-store"}
_Answer = Callable[[Request], Coroutine[Any, Any, Response]]


def with_workers(app: ASGIApp, fleet: Fleet, admin_keys: Iterable[str] = ()) -> ASGIApp:
    """The application, and beside it, out of the reach of the API keys of clients, the routes named above.

    Args:
        admin_keys: any of these opens them; none: only peers on the loopback may use them, and no browser.
    """
    handlers: dict[Any, Any] = {ApiError: on_error, HTTPException: on_error, ClientGoneError: on_client_gone}
    workers = Guard(Starlette(routes=_routes(fleet, admin_keys), exception_handlers=handlers))

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        await (workers if path == _PATH or path.startswith(_PATH + "/") else app)(scope, receive, send)

    return route


def _routes(fleet: Fleet, admin_keys: Iterable[str]) -> list[Route]:
    keys = [key.encode() for key in admin_keys]
    bodies = BodyReader(_MAX_BYTES)

    def guarded(answer: _Answer) -> _Answer:
        async def checked(request: Request) -> Response:
            _check(request, keys)
            return await answer(request)

        return checked

    async def add(request: Request) -> Response:
        spec, leased = _decoded(await bodies.read(request))
        return _shown(fleet, fleet.members.add(spec, leased=leased))

    async def show(_: Request) -> Response:
        rows = [_row(worker, fleet.members.find(worker.worker_id)) for worker in fleet.panel().workers]
        return JSONResponse({"workers": rows}, headers=_NO_STORE)

    async def drain(request: Request) -> Response:
        member = _named(fleet, request)
        fleet.members.drain(member)
        return _shown(fleet, member)

    async def remove(request: Request) -> Response:
        member = _named(fleet, request)
        fleet.members.remove(member, now=request.query_params.get("now") in ("1", "true"))
        gone = fleet.members.get(member.worker_id) is not member
        return Response(status_code=204) if gone else _shown(fleet, member, 202)

    return [
        Route(_PATH, guarded(add), methods=["POST"]),
        Route(_PATH, guarded(show), methods=["GET"]),
        Route(_PATH + "/{worker:path}/drain", guarded(drain), methods=["POST"]),
        Route(_PATH + "/{worker:path}", guarded(remove), methods=["DELETE"]),
    ]


def _check(request: Request, keys: list[bytes]) -> None:
    """Let pass who may change the fleet.

    Raises:
        ApiError: 401 or 403.
    """
    if keys:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        token = given.strip().encode("latin-1") if scheme.lower() == "bearer" else b""
        if sum(hmac.compare_digest(token, key) for key in keys) == 0:
            raise ApiError(401, "this needs an admin key; send it as 'Authorization: Bearer KEY'")
        return
    if not _on_loopback(request) or "origin" in request.headers:  # a page of anywhere could send it from a browser here
        raise ApiError(
            403, "only programs on the router's own machine may do this; elsewhere start it with --admin-key"
        )


def _on_loopback(request: Request) -> bool:
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _decoded(raw: bytes) -> tuple[WorkerSpec, bool]:
    """The worker, and whether it registers itself."""
    try:
        given = msgspec.json.decode(raw, type=Registration)
        return given.spec(), given.lease
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"this is not a worker: {error}", param="body") from None
    except ConfigError as error:
        raise ApiError(400, str(error), param="url") from None


def _named(fleet: Fleet, request: Request) -> Member:
    name = request.path_params["worker"]
    try:
        return fleet.members.find(name)
    except KeyError:
        raise ApiError(404, f"there is no worker {name!r}; GET /workers lists them") from None


def _shown(fleet: Fleet, member: Member, status: int = 200) -> Response:
    row = next(_row(worker, member) for worker in fleet.panel().workers if worker.worker_id == member.worker_id)
    return JSONResponse(row, status, headers=_NO_STORE)


def _row(worker: WorkerPanel, member: Member) -> dict[str, Any]:
    """As at /fleet; `drained`: it gets nothing new, and nobody needs it any more."""
    return worker_row(worker, None) | {"leased": member.leased, "drained": member.draining and member.drained()}
