"""Grammars and tools over a real engine process: a regular expression makes a random model write what a test needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from baton.cluster.launch import model_launch
from baton.cluster.local import LocalEngine
from baton.engine.options import EngineOptions
from baton.server.config import ServerConfig
from tests.server.harness import Server, serve
from tests.server.test_http_cases import check_error

pytestmark = pytest.mark.torch

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "Say hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "pick",
            "parameters": {
                "type": "object",
                "properties": {"color": {"enum": ["red", "blue"]}},
                "required": ["color"],
                "additionalProperties": False,
            },
        },
    }
]
CALL = r'Sure\. <tool_call>\n\{"name": "pick", "arguments": \{"color": "red"\}\}\n</tool_call>'


@pytest.fixture(scope="module")
def real(text_model: Path) -> Iterator[Server]:
    options = EngineOptions(
        model=str(text_model), device="cpu", max_model_len=256, kv_cache_tokens=4096, max_num_seqs=8
    )
    launch = model_launch(options)
    with serve(
        lambda: LocalEngine(launch), ServerConfig(served_model_names=("MODEL",), tool_parser="hermes")
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(real: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=real.url + "/v1", api_key="none", max_retries=0)


def test_json_schema(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    answer = client.chat.completions.create(
        model="MODEL",
        messages=HI,  # type: ignore[arg-type]
        max_tokens=180,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    assert answer.choices[0].finish_reason == "stop"
    assert json.loads(answer.choices[0].message.content or "") in ({"a": 1}, {"a": 2})


def test_tool_call_by_free_choice_whole_and_streamed(client: openai.OpenAI) -> None:
    body: dict[str, Any] = {
        "model": "MODEL",
        "messages": HI,
        "tools": TOOLS,
        "max_tokens": 180,
        "extra_body": {"structured_outputs": {"regex": CALL}},
    }
    choice = client.chat.completions.create(**body).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Sure."
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.function.name == "pick"
    assert json.loads(call.function.arguments) == {"color": "red"}

    content, arguments, names, ends = "", "", [], []
    for chunk in client.chat.completions.create(**body, stream=True):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for part in delta.tool_calls or []:
            assert part.index == 0 and part.function is not None
            arguments += part.function.arguments or ""
            names += [(part.id is not None, part.function.name)] if part.function.name else []
        ends.append(chunk.choices[0].finish_reason)
    assert (content, json.loads(arguments), names) == ("Sure.", {"color": "red"}, [(True, "pick")])
    assert ends[-1] == "tool_calls" and set(ends[:-1]) == {None}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "pick"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_forced_tool_call(real: Server, choice: Any, stream: bool) -> None:
    body = {"messages": HI, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 180}
    if stream:
        chunks = [chunk["choices"][0] for chunk in real.stream(PATH, **body)]
        parts = [part for chunk in chunks for part in chunk["delta"].get("tool_calls", [])]
        name = parts[0]["function"]["name"]
        arguments = "".join(part["function"].get("arguments", "") for part in parts)
        reason = chunks[-1]["finish_reason"]
        assert not any(chunk["delta"].get("content") for chunk in chunks)
    else:
        answer = real.chat(**body)["choices"][0]
        (call,) = answer["message"]["tool_calls"]
        assert answer["message"]["content"] is None or choice != "required"
        name, arguments, reason = call["function"]["name"], call["function"]["arguments"], answer["finish_reason"]
    assert name == "pick" and json.loads(arguments)["color"] in ("red", "blue")
    assert reason == ("tool_calls" if choice == "required" else "stop")


def test_a_grammar_that_does_not_compile_is_refused_before_the_headers(real: Server) -> None:
    for stream in (False, True):
        response = real.post(PATH, messages=HI, structured_outputs={"regex": "(("}, stream=stream)
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "BadRequestError"


def test_openai_errors_have_their_classes(client: openai.OpenAI) -> None:
    ask = client.completions.create
    with pytest.raises(openai.BadRequestError) as bad:
        ask(model="MODEL", prompt="x", temperature=-1)
    assert bad.value.param == "temperature" and bad.value.type == "BadRequestError" and str(bad.value.code) == "400"
    with pytest.raises(openai.NotFoundError):
        ask(model="other", prompt="x")


def test_loglikelihood_of_an_echoed_prompt_is_that_of_generating_it(real: Server) -> None:
    """The logprob of a token must not depend on whether it was sampled or given."""
    body = {"prompt": [72, 105, 33], "max_tokens": 8, "temperature": 0, "logprobs": 1, "ignore_eos": True}
    sampled = real.complete(**body, return_token_ids=True)["choices"][0]
    ids = body["prompt"] + sampled["token_ids"]
    scored = real.complete(prompt=ids, max_tokens=1, echo=True, logprobs=1, temperature=0)["choices"][0]
    assert scored["logprobs"]["token_logprobs"][3:11] == pytest.approx(sampled["logprobs"]["token_logprobs"], abs=1e-4)
    check_error(real.post("/v1/completions", prompt=ids, max_tokens=1, logprobs=-1), "logprobs")
