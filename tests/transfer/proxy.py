"""A proxy for tests: sends each request to a prefill and a decode server, as routers for vLLM's connectors do.

Push: both legs at once, under a transfer_id made here. Pull: the prefill first, its ticket goes to the decode leg.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import AsyncExitStack
from typing import Any, Self

from aiohttp import ClientResponse, ClientSession, ClientTimeout, TCPConnector, web

from baton.core.handoff import TransferMode

PATHS = ("/v1/completions", "/v1/chat/completions")
_PASSED_ON = ("authorization", "traceparent", "tracestate", "x-request-id")
_NOT_FOR_PREFILL = ("stream", "stream_options", "stream_interval", "min_tokens")
_NOT_BACK = ("content-length", "transfer-encoding", "connection", "date", "server", "content-encoding")


class PrefillError(Exception):
    """The prefill leg was not answered with 200."""

    def __init__(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        super().__init__(f"status {status}")
        self.status, self.body, self.headers = status, body, headers


class Proxy:
    """Serves on a free port of the loopback while its context is open.

    Args:
        prefill_url, decode_url: of the two servers, without a path. The prefill server's /stats says where its control
            endpoint is.

    Attributes:
        url: of the proxy.
        transfer_ids: of every request so far, in order.
    """

    def __init__(self, prefill_url: str, decode_url: str, mode: TransferMode) -> None:
        self._prefill_url, self._decode_url, self._mode = prefill_url, decode_url, mode
        self._stack = AsyncExitStack()
        self._http: ClientSession
        self.url = ""
        self.transfer_ids: list[str] = []

    async def __aenter__(self) -> Self:
        timeout = ClientTimeout(total=300)
        self._http = await self._stack.enter_async_context(
            ClientSession(timeout=timeout, connector=TCPConnector(limit=0), auto_decompress=False)
        )
        app = web.Application(client_max_size=64 << 20)
        for path in PATHS:
            app.router.add_post(path, self._serve)
        # Without handler_cancellation a client that goes away would leave both legs running.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        headers["content-type"] = "application/json"
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        if not isinstance(body, dict):  # the decode server words the error
            async with self._http.post(self._decode_url + request.path, data=raw, headers=headers) as answer:
                return await _relay(request, answer)
        body.pop("kv_transfer_params", None)
        transfer_id = uuid.uuid4().hex
        self.transfer_ids.append(transfer_id)
        legs = _Legs(self._http, request.path, headers, transfer_id)
        try:
            if self._mode is TransferMode.PUSH:
                return await self._push(request, legs, body)
            ticket = await legs.prefill(self._prefill_url, body)
            async with legs.decode(self._decode_url, body, ticket) as answer:
                return await _relay(request, answer)
        except PrefillError as error:
            return web.Response(status=error.status, body=error.body, headers=error.headers)

    async def _push(self, request: web.Request, legs: _Legs, body: dict[str, Any]) -> web.StreamResponse:
        source = await self._source(legs.transfer_id)
        prefill = asyncio.create_task(legs.prefill(self._prefill_url, body))
        decode = asyncio.create_task(_opened(legs.decode(self._decode_url, body, source)))
        try:
            await asyncio.wait({prefill, decode}, return_when=asyncio.FIRST_COMPLETED)
            if not decode.done():
                await prefill  # one that failed ends the other leg before its client has seen anything of it
            answer = await decode
            return await _relay(request, answer)
        finally:
            for task in (prefill, decode):
                task.cancel()
            await asyncio.wait({prefill, decode})
            if not decode.cancelled() and decode.exception() is None:
                decode.result().close()
            if not prefill.cancelled():
                prefill.exception()

    async def _source(self, transfer_id: str) -> dict[str, Any]:
        """Where the prefill engine is, as a router with static configuration knows it."""
        async with self._http.get(self._prefill_url + "/stats") as answer:
            known = (await answer.json())["handoff"]
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": known["engine_id"],
            "remote_request_id": transfer_id,
            "remote_host": known["host"],
            "remote_port": known["port"],
            "tp_size": known["tp_size"],
            "pp_size": known["pp_size"],
            "transfer_id": transfer_id,
        }


class _Legs:
    """The two requests that one request becomes."""

    def __init__(self, http: ClientSession, path: str, headers: dict[str, str], transfer_id: str) -> None:
        self._http, self._path, self._headers = http, path, headers
        self.transfer_id = transfer_id

    async def prefill(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        """The ticket.

        Raises:
            PrefillError: there is none.
        """
        asked = {name: value for name, value in body.items() if name not in _NOT_FOR_PREFILL} | {"max_tokens": 1}
        if "max_completion_tokens" in body:
            asked["max_completion_tokens"] = 1
        asked["kv_transfer_params"] = {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "transfer_id": self.transfer_id,
            **dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")),
        }
        async with self._http.post(url + self._path, json=asked, headers=self._headers) as answer:
            raw = await answer.read()
            if answer.status != 200:
                raise PrefillError(answer.status, raw, _kept(answer))
            ticket: dict[str, Any] = json.loads(raw)["kv_transfer_params"]
            return ticket

    def decode(self, url: str, body: dict[str, Any], source: dict[str, Any]) -> Any:
        """The request whose answer the client gets."""
        return self._http.post(url + self._path, json={**body, "kv_transfer_params": source}, headers=self._headers)


async def _opened(request: Any) -> ClientResponse:
    answer: ClientResponse = await request
    return answer


def _kept(answer: ClientResponse) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.lower() not in _NOT_BACK}


async def _relay(request: web.Request, answer: ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=_kept(answer))
    await response.prepare(request)
    async for piece in answer.content.iter_any():
        await response.write(piece)
    await response.write_eof()
    return response
