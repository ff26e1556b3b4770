"""Asks a server or a router over HTTP, as a person would by curl: one GET, one JSON answer."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

_MAX_BYTES = 16 << 20
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a fleet is not behind a web proxy


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What came back.

    Attributes:
        status: of the answer; 0: there was none.
        body: its JSON; None where there is none.
        error: why there is no usable answer; "" when there is one.
        date_s: its Date header, seconds since the epoch; None where there is none.
        asked_s, answered_s: when it was asked and answered, on this machine's clock.
    """

    status: int
    body: Any = None
    error: str = ""
    date_s: float | None = None
    asked_s: float = field(default_factory=time.time)
    answered_s: float = field(default_factory=time.time)


def ask(url: str, *, timeout_s: float, key: str | None = None) -> Asked:
    """GET a URL. Never raises for what the other side does.

    Args:
        key: sent as a bearer token.
    """
    headers = {"Accept": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    asked_s = time.time()
    try:
        with _DIRECT.open(urllib.request.Request(url, headers=headers), timeout=timeout_s) as answer:
            return _read(answer.status, answer.headers.get("Date"), answer.read(_MAX_BYTES), asked_s)
    except urllib.error.HTTPError as error:
        return Asked(status=error.code, error=f"it answers {error.code} {error.reason}", asked_s=asked_s)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        said = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        return Asked(status=0, error=str(said), asked_s=asked_s)


def _read(status: int, date: str | None, raw: bytes, asked_s: float) -> Asked:
    try:
        body = json.loads(raw)
    except ValueError:
        return Asked(status=status, error="what it answers is not JSON", date_s=_seconds(date), asked_s=asked_s)
    return Asked(status=status, body=body, date_s=_seconds(date), asked_s=asked_s)


def _seconds(date: str | None) -> float | None:
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
