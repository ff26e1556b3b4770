"""POST /v1/chat/completions without tools, against the stub engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from baton.text.tokenizer import Tokenizer, load_tokenizer
from tests.server.harness import Server
from tests.server.test_completions import oracle
from tests.server.test_http_cases import check_error

pytestmark = pytest.mark.slow

PATH = "/v1/chat/completions"
HI: list[dict[str, Any]] = [{"role": "user", "content": "Say hi"}]
RENDERED = "<start>user: Say hi<end><start>assistant: "


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return load_tokenizer(tokenizer_folder)


def test_whole_answer(server: Server, tokenizer: Tokenizer) -> None:
    answer = server.chat(model="MODEL", messages=HI, max_completion_tokens=6, seed=1, return_token_ids=True)
    prompt = tokenizer.encode(RENDERED, add_special_tokens=False)
    tokens = oracle(prompt, 6)
    assert answer["id"].startswith("chatcmpl-") and answer["object"] == "chat.completion"
    assert answer["prompt_token_ids"] == prompt
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": tokenizer.decode(tokens), "refusal": None}
    assert choice["finish_reason"] == "length" and choice["index"] == 0 and choice["logprobs"] is None
    assert answer["usage"]["prompt_tokens"] == len(prompt) and answer["usage"]["completion_tokens"] == 6


def test_max_completion_tokens_wins_over_max_tokens(server: Server) -> None:
    answer = server.chat(messages=HI, max_completion_tokens=2, max_tokens=5)
    assert answer["usage"]["completion_tokens"] == 2


def test_without_a_limit_it_runs_to_max_model_len(server: Server) -> None:
    usage = server.chat(messages=[{"role": "user", "content": "x" * 2000}])["usage"]
    assert usage["total_tokens"] == 2048


@pytest.mark.parametrize("n", [1, 3])
def test_stream(server: Server, n: int) -> None:
    """The role in the opening chunk only; the text joins to the whole; the end once a choice; usage behind."""
    body = {"messages": HI, "max_tokens": 12, "seed": 4, "n": n}
    whole = server.chat(**body)
    *chunks, usage = server.stream(PATH, **body, stream_options={"include_usage": True})
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 12 * n
    for index in range(n):
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in own[1:])
        text = "".join(choice["delta"].get("content", "") for choice in own)
        assert text == whole["choices"][index]["message"]["content"]
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["length"]


def test_continuous_usage_counts_from_the_first_token(server: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _ = server.stream(PATH, messages=HI, max_tokens=5, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts[0] == 0 and counts[1] >= 1 and counts[-1] == 5 and counts == sorted(counts)


def test_logprobs(server: Server) -> None:
    body = {"messages": HI, "max_tokens": 3, "seed": 1, "logprobs": True, "top_logprobs": 1}
    whole = server.chat(**body)["choices"][0]["logprobs"]["content"]
    assert len(whole) == 3
    for entry in whole:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert [set(top) for top in entry["top_logprobs"]] == [{"token", "logprob", "bytes"}]
        assert entry["top_logprobs"][0]["token"] == entry["token"]
    streamed: list[Any] = []
    for chunk in server.stream(PATH, **body):
        logprobs = chunk["choices"][0]["logprobs"]
        streamed += logprobs["content"] if logprobs else []
    assert streamed == whole
    bare = server.chat(messages=HI, max_tokens=1, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert bare[0]["top_logprobs"] == []


def test_list_of_text_parts(server: Server) -> None:
    parts = [{"type": "text", "text": "Say hi"}]
    assert prompt_ids(server, messages=[{"role": "user", "content": parts}]) == prompt_ids(server, messages=HI)


def prompt_ids(server: Server, **body: Any) -> list[int]:
    ids: list[int] = server.chat(**body, max_tokens=1, return_token_ids=True)["prompt_token_ids"]
    return ids


def test_add_generation_prompt_and_continue_final_message(server: Server, tokenizer: Tokenizer) -> None:
    def text(**body: Any) -> str:
        return tokenizer.decode(prompt_ids(server, **body), skip_special_tokens=False)

    assert text(messages=HI) == RENDERED
    assert text(messages=HI, add_generation_prompt=False) == "<start>user: Say hi<end>"
    begun = [*HI, {"role": "assistant", "content": "Well, "}]
    assert text(messages=begun, continue_final_message=True) == "<start>user: Say hi<end><start>assistant: Well, "


def test_tokenize_shows_the_same_prompt(server: Server) -> None:
    answer = server.post("/tokenize", messages=HI).json()
    assert answer["tokens"] == prompt_ids(server, messages=HI) and answer["count"] == len(answer["tokens"])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages.0"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "messages.0.tool_calls"),
        ({"messages": HI * 16_385}, "messages"),
        ({"tools": [{}] * 1025}, "tools"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"chat_template": "x"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"stop": ["a", 3]}, "stop.1"),
    ],
    ids=lambda value: str(value)[:80] if isinstance(value, dict) else None,
)
def test_refused_by_name(server: Server, body: dict[str, Any], param: str) -> None:
    response = server.post(PATH, **{"messages": HI, **body})
    assert response.status_code == 400, response.text
    check_error(response, param)


@pytest.mark.parametrize(
    ("body", "param"), [({"messages": HI * 16_385}, "messages"), ({"messages": HI, "tools": [{}] * 1025}, "tools")]
)
def test_tokenize_has_the_same_limits(server: Server, body: dict[str, Any], param: str) -> None:
    check_error(server.post("/tokenize", **body), param)
    assert server.post("/tokenize", messages=HI * 16_384).status_code == 200
