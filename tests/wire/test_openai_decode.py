"""Lenient reading of bodies; the values are those of pydantic's lax mode, which clients of vLLM are used to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from baton.core.errors import RequestError
from baton.wire.openai.chat import ChatRequest
from baton.wire.openai.completions import CompletionRequest
from baton.wire.openai.decode import decode, unknown_fields


@pytest.mark.parametrize(
    ("body", "name", "value"),
    [
        (b'{"max_tokens":"3"}', "max_tokens", 3),
        (b'{"max_tokens":3.0}', "max_tokens", 3),
        (b'{"temperature":"0.5"}', "temperature", 0.5),
        (b'{"stream":"true"}', "stream", True),
        (b'{"stop":null}', "stop", None),
        (b'{"stop":"3"}', "stop", "3"),
        (b'{"prompt":["1","2"]}', "prompt", ["1", "2"]),
        (b'{"prompt":[[1,2],[3]]}', "prompt", [[1, 2], [3]]),
        (b'{"seed":9223372036854775807}', "seed", (1 << 63) - 1),
        (b' {"nonsense":{"a":1}} ', "prompt", None),
    ],
)
def test_reads(body: bytes, name: str, value: Any) -> None:
    assert getattr(decode(body, CompletionRequest), name) == value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", "body"),
        (b"  ", "body"),
        (b"[1]", "body"),
        (b'"x"', "body"),
        (b'{"model":', "body"),
        (b'{"model":"\xff"}', "body"),
        (b"[" * 100_000, "body"),
        (b'{"a":' * 100_000, "body"),
        (b'{"stop":["a",3]}', "stop.1"),
        (b'{"prompt":[1,{}]}', "prompt.1"),
        (b'{"prompt":[["a"]]}', "prompt.0.0"),
        (b'{"logit_bias":{"1":"x"}}', "logit_bias"),
        (b'{"stream_options":{"include_usage":"?"}}', "stream_options.include_usage"),
        (b'{"temperature":1e999}', "temperature"),
        (b'{"priority":9223372036854775808}', "priority"),
        (b'{"seed":1180591620717411303424}', "seed"),
        (b'{"stop_token_ids":[1,-1180591620717411303424]}', "stop_token_ids.1"),
        (b'{"prompt":[[1180591620717411303424]]}', "prompt.0.0"),
        (b'{"stop":"\\ud800"}', "body"),
        (b'{"unknown":["\\udc00\\ud800"]}', "body"),
    ],
    ids=range(20),
)
def test_refuses_by_path(body: bytes, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        decode(body, CompletionRequest)
    assert refused.value.param == param and "\n" not in str(refused.value)


def test_missing_field_is_named() -> None:
    with pytest.raises(RequestError) as refused:
        decode(b"{}", ChatRequest)
    assert refused.value.param == "messages"


def test_python_writes_nan_and_it_is_read_as_such() -> None:
    value = decode(b'{"temperature": NaN}', CompletionRequest).temperature
    assert value is not None and value != value


def test_nan_is_not_looked_for_in_a_long_body() -> None:
    """Python's parser would hold every other request up for seconds."""
    with pytest.raises(RequestError) as refused:
        decode(b'{"temperature": NaN, "user": "' + b"x" * (1 << 20) + b'"}', CompletionRequest)
    assert refused.value.param == "body"


def test_unknown_fields() -> None:
    assert unknown_fields(b'{"prompt":"x","zeta":1,"alpha":2}', CompletionRequest) == ["alpha", "zeta"]


def test_every_field_but_messages_may_be_null() -> None:
    for kind in (CompletionRequest, ChatRequest):
        names = [field.name for field in msgspec.structs.fields(kind) if field.name != "messages"]
        body: dict[str, Any] = {**dict.fromkeys(names), "messages": []}
        decode(msgspec.json.encode(body), kind)
