"""POST /v1/completions and /v1/chat/completions at the router."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from baton.router.attempt import Trip
from baton.router.body import Asked, read_body
from baton.router.client import Client
from baton.router.desk import Desk
from baton.router.dispatch import dispatch
from baton.router.interrupt import Interrupt
from baton.router.progress import Progress
from baton.router.record import RequestRecord
from baton.router.tenants import TenantHold, Tenants
from baton.web.errors import ApiError, ClientGoneError, as_api_error
from baton.web.limits import BodyReader

_PASSED_ON = ("authorization", "traceparent", "tracestate")
_GONE = 499


class Generating:
    """An ASGI application for both paths. Errors of before the answer are raised.

    Args:
        tenants: limits by API key; None: there are none.
    """

    def __init__(self, desk: Desk, tenants: Tenants | None) -> None:
        self._desk = desk
        self._tenants = tenants
        self._bodies = BodyReader(desk.config.max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            ApiError: an answer that is an error.
            ClientGoneError: nobody is there to answer.
        """
        arrival_s = time.time()
        http = Request(scope, receive)
        raw = await self._bodies.read(http)
        asked = read_body(raw, scope["path"], session=http.headers.get(self._desk.config.session_header))
        tenant = self._admit(http, asked)
        record = _record(http, asked, arrival_s)
        self._desk.journal.start(record)
        try:
            await self._serve(http, asked, record, Client(send, record))
        except Exception as error:
            _note(record, error)
            raise
        finally:
            record.ended_s = time.time()
            if tenant is not None:
                tenant.release(_used(record))
            self._desk.journal.finish(record)

    def _admit(self, http: Request, asked: Asked) -> TenantHold | None:
        if self._tenants is None:
            return None
        scheme, _, key = http.headers.get("authorization", "").partition(" ")
        demand = asked.demand
        num_tokens = demand.num_prompt_tokens + demand.num_new_tokens
        return self._tenants.admit(key.strip() if scheme.lower() == "bearer" else None, num_tokens)

    async def _serve(self, http: Request, asked: Asked, record: RequestRecord, client: Client) -> None:
        loop, interrupt = asyncio.get_running_loop(), Interrupt()
        timeout_s = self._desk.config.request_timeout_s
        deadline_s = loop.time() + timeout_s
        late = ApiError(504, f"the request took longer than the router's limit of {timeout_s:g} s")
        timer = loop.call_at(deadline_s, interrupt, late)
        watching = loop.create_task(_watch(http.receive, client, interrupt))
        trip = Trip(
            asked=asked,
            headers=_passed_on(http, record.request_id),
            record=record,
            progress=Progress(asked, client, record),
            interrupt=interrupt,
            deadline_s=deadline_s,
        )
        try:
            await dispatch(self._desk, trip)
        except asyncio.CancelledError:
            cause = interrupt.cause()  # outside of an attempt, such as the answer's last bytes
            if cause is None:
                raise
            raise cause from None
        except Exception as error:
            if not client.started or isinstance(error, ClientGoneError):
                raise
            await client.fail(as_api_error(error))
            raise
        finally:
            timer.cancel()
            watching.cancel()


async def _watch(receive: Receive, client: Client, gone: Callable[[Exception], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if not client.ended:
        gone(ClientGoneError("the client left"))


def _passed_on(http: Request, request_id: str) -> dict[str, str]:
    headers = {"content-type": "application/json", "x-request-id": request_id}
    for name in _PASSED_ON:
        value = http.headers.get(name)
        if value is not None:
            headers[name] = value
    return headers


def _record(http: Request, asked: Asked, arrival_s: float) -> RequestRecord:
    return RequestRecord(
        request_id=http.state.request_id,
        path=asked.path,
        model=asked.wishes.model or "",
        stream=bool(asked.wishes.stream),
        arrival_s=arrival_s,
        num_prompt_tokens=asked.demand.num_prompt_tokens,
    )


def _note(record: RequestRecord, error: Exception) -> None:
    """What the client is told, or would have been."""
    if isinstance(error, ClientGoneError):
        record.status, record.error = _GONE, "the client left"
        return
    api_error = as_api_error(error)
    record.status = record.status or api_error.status
    record.error = record.error or api_error.message


def _used(record: RequestRecord) -> int | None:
    """Tokens that a request came to; None where that is not known."""
    return record.num_prompt_tokens + record.num_new_tokens if record.num_new_tokens or record.status >= 400 else None
