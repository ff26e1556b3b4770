"""Answers over HTTP as two servers must agree on them."""

from __future__ import annotations

import json
from typing import Any

import httpx


def whole(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return comparable(answer.json())


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from request to request; logprobs to three digits."""
    kept = {name: value for name, value in answer.items() if name not in ("id", "created")}
    found: dict[str, Any] = json.loads(json.dumps(kept), parse_float=lambda text: round(float(text), 3))
    return found
