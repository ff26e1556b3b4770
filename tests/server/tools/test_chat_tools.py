"""Tools over HTTP, against the stub engine: it writes noise, which a named function takes for its arguments."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.harness import Server
from tests.server.test_http_cases import check_error

PATH = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}]
NAMED = {"type": "function", "function": {"name": "f"}}
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 24, "seed": 3}


def test_a_named_call_whole_and_streamed(server: Server) -> None:
    plain = server.chat(**BODY, tools=TOOLS)["choices"][0]["message"]["content"]
    (choice,) = server.chat(**BODY, tools=TOOLS, tool_choice=NAMED)["choices"]
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"].startswith("call_")
    assert call["function"] == {"name": "f", "arguments": plain}  # the same seed, the same tokens
    assert choice["finish_reason"] == "length"

    chunks = [chunk["choices"][0] for chunk in server.stream(PATH, **BODY, tools=TOOLS, tool_choice=NAMED)]
    deltas = [call for chunk in chunks for call in chunk["delta"].get("tool_calls", [])]
    assert deltas[0]["index"] == 0 and deltas[0]["id"].startswith("call_") and deltas[0]["type"] == "function"
    assert deltas[0]["function"] == {"name": "f", "arguments": ""}
    assert all("id" not in delta and "name" not in delta["function"] for delta in deltas[1:])
    assert "".join(delta["function"]["arguments"] for delta in deltas) == plain
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["length"]
    assert not any(chunk["delta"].get("content") for chunk in chunks)


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_noise_is_content_and_streams_as_the_whole(server: Server, choice: str) -> None:
    (whole,) = server.chat(**BODY, tools=TOOLS, tool_choice=choice)["choices"]
    assert "tool_calls" not in whole["message"]
    chunks = [chunk["choices"][0] for chunk in server.stream(PATH, **BODY, tools=TOOLS, tool_choice=choice)]
    text = "".join(chunk["delta"].get("content") or "" for chunk in chunks)
    assert text == whole["message"]["content"] != ""
    assert chunks[-1]["finish_reason"] == "length"


def test_tools_are_in_the_prompt_unless_none_may_be_called(server: Server) -> None:
    def prompt_tokens(**tools: Any) -> int:
        return int(server.chat(**{**BODY, "max_tokens": 1}, **tools)["usage"]["prompt_tokens"])

    bare = prompt_tokens()
    assert prompt_tokens(tools=TOOLS, tool_choice="none") == bare
    assert prompt_tokens(tools=[]) == bare
    assert prompt_tokens(tools=TOOLS) > bare


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "retrieval"}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format"),
    ],
)
def test_errors_name_the_field(server: Server, fields: dict[str, Any], param: str) -> None:
    response = server.post(PATH, **BODY, **fields)
    assert response.status_code == 400
    check_error(response, param)
