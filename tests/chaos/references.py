"""The right answers: what one engine without a peer says."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.chaos.answers import Answer, whole
from tests.chaos.asks import MODEL_LEN, Ask
from tests.chaos.models import FLOAT32
from tests.soak.tiny import baton_serve

_CLIENTS, _WAIT_S = 8, 120.0


def right_answers(model: Path, asks: Iterable[Ask]) -> dict[int, Answer]:
    """By number of the request.

    Raises:
        AssertionError: it refused one; then the request is none to test with.
    """
    flags = (*FLOAT32, "--max-model-len", str(MODEL_LEN), "--kv-cache-tokens", "8192")
    with baton_serve(str(model), *flags) as server:
        url = server.ready().url
        with httpx.Client(base_url=url, timeout=_WAIT_S) as http, ThreadPoolExecutor(_CLIENTS) as threads:

            def answer(ask: Ask) -> tuple[int, Answer]:
                reply = http.post(ask.path, json=ask.body)
                assert reply.status_code == 200, (ask, reply.text)
                return ask.number, whole(reply.json())

            return dict(threads.map(answer, asks))
