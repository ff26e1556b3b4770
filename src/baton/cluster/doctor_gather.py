"""Asks a router, its workers and their ports for what a doctor has to know."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import urlsplit

from baton.cluster.ask import Asked, ask
from baton.cluster.doctor_facts import Endpoint, FleetFacts, RouterFacts, ServerFacts
from baton.core.errors import ConfigError
from baton.core.handoff import Role, TransferMode

_TIMEOUT_S = 5.0
_CONNECT_S = 3.0
_THREADS = 32

_E = TypeVar("_E", bound=Enum)


def gather_fleet(url: str) -> FleetFacts:
    """What is known of the router, or the one server, at this URL.

    Raises:
        ConfigError: that is no URL.
    """
    url = _without_path(url)
    told = ask(url + "/fleet", timeout_s=_TIMEOUT_S)
    if not (isinstance(told.body, dict) and isinstance(told.body.get("workers"), list)):
        return FleetFacts(router=None, servers=(_server(url, None),))
    workers = [worker for worker in told.body["workers"] if isinstance(worker, dict)]
    with ThreadPoolExecutor(_THREADS) as threads:
        return FleetFacts(router=_router(url, told.body, workers), servers=tuple(threads.map(_worker, workers)))


def _without_path(url: str) -> str:
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is no URL of a router or a server; give one such as http://127.0.0.1:8080")
    return f"{parts.scheme}://{parts.netloc}"


def _router(url: str, body: Mapping[str, Any], workers: list[dict[str, Any]]) -> RouterFacts:
    # Servers of our own are asked themselves, and say more.
    others = [worker for worker in workers if (worker.get("facts") or {}).get("kind") == "openai"]
    reasons = [str(each["reason"]) for worker in others for each in worker.get("unpaired") or ()]
    return RouterFacts(url=url, mode=str(body["router"]["mode"]), unpaired=tuple(dict.fromkeys(reasons)))


def _worker(worker: Mapping[str, Any]) -> ServerFacts:
    facts = _server(str(worker["url"]), _known(Role, worker.get("role")))
    return replace(facts, note=str(worker.get("note", "")))


def _server(url: str, told_role: Role | None) -> ServerFacts:
    stats = ask(url + "/stats", timeout_s=_TIMEOUT_S)
    if isinstance(stats.body, dict) and "served" in stats.body:
        facts = replace(server_facts(url, stats.body), told_role=told_role, clock_offset_s=clock_offset_s(stats))
        if facts.side_channel is None:
            return facts
        return replace(facts, side_channel_error=_connect(facts.side_channel))
    return _plain_server(url, told_role, stats)


def _plain_server(url: str, told_role: Role | None, stats: Asked) -> ServerFacts:
    """Of a server that has no /stats like ours."""
    models = ask(url + "/v1/models", timeout_s=_TIMEOUT_S)
    if models.status == 0:
        return ServerFacts(url=url, told_role=told_role, error=models.error)
    if not (isinstance(models.body, dict) and isinstance(models.body.get("data"), list)):
        return ServerFacts(url=url, told_role=told_role, error=f"no router and no server: {stats.error or 'odd JSON'}")
    names = tuple(str(model.get("id")) for model in models.body["data"] if isinstance(model, dict))
    offset_s = clock_offset_s(models)
    return ServerFacts(url=url, is_baton=False, told_role=told_role, models=names, clock_offset_s=offset_s)


def server_facts(url: str, stats: Mapping[str, Any]) -> ServerFacts:
    """From the body of a Baton server's GET /stats; what an older one does not tell stays at its default."""
    served, peer = stats["served"], stats.get("handoff") or {}
    return ServerFacts(
        url=url,
        state=str(stats.get("state", "ready")),
        models=tuple(served.get("models") or [served["model"]]),
        fingerprint=str(served.get("fingerprint", "")),
        role=_known(Role, peer.get("role")),
        transfer_modes=frozenset(mode for mode in TransferMode if mode.value in peer.get("transfer_modes", ())),
        side_channel=Endpoint(host=str(peer["host"]), port=int(peer["port"])) if peer else None,
        tp_size=int(peer.get("tp_size", 1)),
        silent_s=float(stats.get("engine_silent_s") or 0.0),
    )


def _known(kind: type[_E], value: object) -> _E | None:
    return next((item for item in kind if item.value == value), None)


def clock_offset_s(asked: Asked) -> float | None:
    """Its clock minus ours, to half a second and half of the way there and back; None where it does not tell a time."""
    if asked.date_s is None:
        return None
    return asked.date_s + 0.5 - (asked.asked_s + asked.answered_s) / 2  # Date is cut to whole seconds


def _connect(endpoint: Endpoint) -> str:
    """Why there is no connection; "" when there is one."""
    try:
        socket.create_connection((endpoint.host, endpoint.port), timeout=_CONNECT_S).close()
    except OSError as error:
        return (error.strerror or str(error) or type(error).__name__).lower()
    return ""
