"""Sends one request, and fetches what the router, or both its engines, traced of it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from baton.bench.answer import Answer
from baton.bench.client import Client, NoAnswerError
from baton.core.handoff import TransferMode
from baton.obs import chrome_trace

_ENDS_S = 5.0
_LOOK_S = 0.2
_PATH = "/v1/completions"
_ADDRESS = {"engine_id": "remote_engine_id", "host": "remote_host", "port": "remote_port"}
_SIZES = ("tp_size", "pp_size")

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """One request.

    Attributes:
        trace: in Chrome's format.
        first_ms, last_ms: from sending to the first and the last piece, as the client saw it.
        num_pieces: of the answer.
    """

    trace: dict[str, Any]
    transfer_id: str
    first_ms: float
    last_ms: float
    num_pieces: int


async def through_router(client: Client, body: Body) -> Profiled:
    """A streamed request through a Baton router.

    Raises:
        NoAnswerError: it failed, or no hand-off came of it.
    """
    request_id = f"profile-{secrets.token_hex(8)}"
    answer, sent_s = await _streamed(client, body, {"x-request-id": request_id})
    transfer_id = await _transfer_id(client, request_id)
    return _profiled(await _complete((client,), transfer_id), transfer_id, answer, sent_s)


async def through_pair(prefill: Client, decode: Client, body: Body, mode: TransferMode) -> Profiled:
    """A request over two engines, in the place of a router. The first piece is the decode engine's.

    Raises:
        NoAnswerError: a leg failed, or the engines have no peers.
    """
    transfer_id = secrets.token_hex(16)
    peer = (await prefill.ask("GET", "/stats")).get("handoff")
    if not peer:
        raise NoAnswerError(f"{prefill.url} has no peer: start it with --role prefill")
    give = {**body, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True, "transfer_id": transfer_id}}
    address = {theirs: peer[ours] for ours, theirs in _ADDRESS.items()}
    sizes = {name: peer[name] for name in _SIZES if name in peer}
    taking = {"do_remote_prefill": True, "transfer_id": transfer_id, **address, **sizes}
    take = {**body, "kv_transfer_params": taking}
    if mode is TransferMode.PULL:
        ticket = await prefill.ask("POST", _PATH, give)
        take["kv_transfer_params"] = {**ticket["kv_transfer_params"], "transfer_id": transfer_id}
        answer, sent_s = await _streamed(decode, take)
    else:
        _, (answer, sent_s) = await asyncio.gather(prefill.ask("POST", _PATH, give), _streamed(decode, take))
    return _profiled(await _complete((prefill, decode), transfer_id), transfer_id, answer, sent_s)


async def _streamed(client: Client, body: Body, headers: Mapping[str, str] | None = None) -> tuple[Answer, float]:
    answer = Answer()
    sent_s = time.perf_counter()
    encoded = msgspec.json.encode({**body, "stream": True, "stream_options": {"include_usage": True}})
    answer.error = await client.stream(_PATH, encoded, answer.feed, headers) or answer.error
    answer.close()
    if answer.error:
        raise NoAnswerError(answer.error)
    return answer, sent_s


async def _transfer_id(client: Client, request_id: str) -> str:
    """Of the attempt that answered the request, by GET /fleet."""
    deadline_s = time.monotonic() + _ENDS_S
    while time.monotonic() < deadline_s:
        fleet = await client.ask("GET", "/fleet")
        rows = [row for row in fleet.get("requests") or () if row["request_id"] == request_id and not row["live"]]
        attempts = rows[0]["attempts"] if rows else []
        if attempts and attempts[-1]["transfer_id"]:
            return str(attempts[-1]["transfer_id"])
        if attempts:
            raise NoAnswerError(f"{client.url} served the request without a hand-off (mode {attempts[-1]['mode']})")
        await asyncio.sleep(_LOOK_S)
    raise NoAnswerError(f"{client.url}/fleet does not show the request: is it a Baton router?")


async def _complete(clients: Sequence[Client], transfer_id: str) -> dict[str, Any]:
    """The trace of all, once nothing is added to it any more: the record of the wire may come after the answer."""
    deadline_s = time.monotonic() + _ENDS_S
    before: dict[str, Any] = {}
    while True:
        documents = await asyncio.gather(*(client.ask("GET", f"/trace/{transfer_id}") for client in clients))
        trace: dict[str, Any] = chrome_trace.merge(documents)
        has_wire = any(event["name"] == "wire" for event in trace["traceEvents"])
        if (has_wire and trace == before) or time.monotonic() >= deadline_s:
            return trace
        before = trace
        await asyncio.sleep(_LOOK_S)


def _profiled(trace: dict[str, Any], transfer_id: str, answer: Answer, sent_s: float) -> Profiled:
    return Profiled(
        trace=trace,
        transfer_id=transfer_id,
        first_ms=(answer.chunk_s[0] - sent_s) * 1e3,
        last_ms=(answer.chunk_s[-1] - sent_s) * 1e3,
        num_pieces=len(answer.chunk_s),
    )
