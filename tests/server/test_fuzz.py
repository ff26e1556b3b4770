"""Bodies with any JSON in any field: refused in OpenAI's shape or answered, never a 5xx."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton.wire.openai.chat import ChatRequest
from baton.wire.openai.completions import CompletionRequest
from baton.wire.openai.text import DetokenizeRequest, TokenizeRequest
from tests.server.harness import Server

pytestmark = pytest.mark.slow

ODD = [
    0,
    1,
    -1,
    2,
    20,
    0.5,
    1e308,
    (1 << 63) - 1,
    1 << 63,
    -(1 << 63) - 1,
    1 << 70,
    True,
    "",
    "1",
    "\ud800",
    "\0",
    None,
]
LEAVES = st.one_of(st.sampled_from(ODD), st.integers(), st.floats(), st.text(max_size=8))
JSON = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["type", "text", "role", "content", "json", "function", "1", "name"]), inner),
    ),
    max_leaves=6,
)
ENDPOINTS: dict[str, tuple[type[msgspec.Struct], dict[str, Any]]] = {
    "/v1/completions": (CompletionRequest, {"prompt": "x", "max_tokens": 2}),
    "/v1/chat/completions": (ChatRequest, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
    "/tokenize": (TokenizeRequest, {"prompt": "x"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [1]}),
}


@pytest.mark.parametrize("path", ENDPOINTS)
def test_any_json_in_any_field(server: Server, path: str) -> None:
    kind, base = ENDPOINTS[path]
    names = [field.name for field in msgspec.structs.fields(kind)]
    with server.http() as http:

        @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(st.dictionaries(st.sampled_from(names), JSON, min_size=1, max_size=3))
        def check(changes: dict[str, Any]) -> None:
            response = http.post(path, content=json.dumps({**base, **changes}).encode())
            assert response.status_code < 500, (changes, response.text)
            if response.status_code >= 400:
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}
            elif response.headers["content-type"].startswith("text/event-stream"):
                assert response.content.endswith(b"data: [DONE]\n\n") and b'"error"' not in response.content

        check()


@pytest.mark.parametrize("path", ENDPOINTS)
def test_odd_values_in_every_field(server: Server, path: str) -> None:
    kind, base = ENDPOINTS[path]
    with server.http() as http:
        for field in msgspec.structs.fields(kind):
            for value in [*ODD, *([each] for each in ODD), *({"1": each} for each in ODD)]:
                response = http.post(path, content=json.dumps({**base, field.name: value}).encode())
                assert response.status_code < 500, (field.name, value, response.text)


@pytest.mark.parametrize("path", ENDPOINTS)
def test_any_bytes(server: Server, path: str) -> None:
    with server.http() as http:

        @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(st.binary(max_size=40))
        def check(body: bytes) -> None:
            response = http.post(path, content=body)
            assert 400 <= response.status_code < 500 and response.json()["error"]["param"], response.text

        check()


def test_nothing_is_left_of_it(server: Server) -> None:
    assert httpx.get(server.url + "/load").json() == {"server_load": 0}
    assert server.client.num_live == 0
