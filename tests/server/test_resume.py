"""`resume_token_ids`, and comments with token ids: an answer that goes on is the answer that was broken off."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.harness import Server, events_of
from tests.server.test_http_cases import check_error

pytestmark = pytest.mark.slow

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Say hi"}]
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (COMPLETIONS, {"prompt": "Hi there", "max_tokens": 12}),
    "logprobs": (COMPLETIONS, {"prompt": "Hi there", "max_tokens": 12, "logprobs": 1}),
    "echo": (COMPLETIONS, {"prompt": "Hi there", "max_tokens": 12, "echo": True}),
    "chat": (CHAT, {"messages": MESSAGES, "max_tokens": 12}),
    "chat logprobs": (CHAT, {"messages": MESSAGES, "max_tokens": 12, "logprobs": True, "top_logprobs": 1}),
}
FIXED = {"seed": 1, "ignore_eos": True, "return_token_ids": True}


def text_of(choice: dict[str, Any]) -> str:
    shown: str = choice["text"] if "text" in choice else choice.get("message", choice.get("delta"))["content"]
    return shown


def logprobs_of(choice: dict[str, Any]) -> list[Any]:
    """One entry a token, in either format."""
    found = choice.get("logprobs")
    if found is None:
        return []
    if "content" in found:
        return list(found["content"])
    return list(zip(*(found[name] for name in ("tokens", "token_logprobs", "text_offset")), strict=True))


def ask(server: Server, path: str, body: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    """The answer's text, ids, logprobs, end and usage, however it came."""
    if not stream:
        answer = server.post(path, **body).json()
        (choice,) = answer["choices"]
        parts, usage = [choice], answer["usage"]
    else:
        *chunks, last = server.stream(path, **body, stream_options={"include_usage": True})
        parts, usage = [chunk["choices"][0] for chunk in chunks], last["usage"]
    return {
        "text": "".join(map(text_of, parts)),
        "ids": [token for part in parts for token in part.get("token_ids", [])],
        "logprobs": [entry for part in parts for entry in logprobs_of(part)],
        "end": (parts[-1]["finish_reason"], parts[-1].get("stop_reason")),
        "usage": (usage["prompt_tokens"], usage["completion_tokens"]),
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", BODIES)
def test_behind_any_number_of_tokens_the_answer_is_the_whole_one(server: Server, name: str, stream: bool) -> None:
    """Of the resumed tokens all is shown but their logprobs. With all of them the answer comes without the engine."""
    path, body = BODIES[name]
    body = {**body, **FIXED}
    whole = ask(server, path, body, stream=stream)
    assert len(whole["ids"]) == 12 and whole["end"][0] == "length"
    for k in range(1, 13):
        resumed = ask(server, path, {**body, "resume_token_ids": whole["ids"][:k]}, stream=stream)
        assert resumed == {**whole, "logprobs": whole["logprobs"][k:]}, f"behind {k} tokens"


def late(values: list[int]) -> int:
    """One that is new at the tenth place or soon after."""
    return next(value for place, value in enumerate(values) if place >= 9 and value not in values[:place])


def late_pair(text: str) -> str:
    """Two whole characters that stand together for the first time at the tenth place or soon after."""
    pairs = ((place, text[place : place + 2]) for place in range(9, len(text) - 1))
    return next(pair for place, pair in pairs if "\ufffd" not in pair and text.find(pair) == place)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("min_tokens", [0, 5])
def test_what_ends_an_answer_ends_it_wherever_it_is_resumed(
    server: Server, stream: bool, include: bool, min_tokens: int
) -> None:
    body = {"prompt": "Hello", "max_tokens": 60, **FIXED}
    free = ask(server, COMPLETIONS, body, stream=False)
    extra = {"include_stop_str_in_output": include, "min_tokens": min_tokens}
    stops = [{"stop": [late_pair(free["text"]), "\0never"]}, {"stop_token_ids": [late(free["ids"])]}]
    for stop in stops:
        whole = ask(server, COMPLETIONS, {**body, **extra, **stop}, stream=stream)
        count = len(whole["ids"])
        assert whole["end"][0] == "stop" and whole["end"][1] is not None and 5 < count < 50
        for k in range(1, count + 1):
            resumed = {**body, **extra, **stop, "resume_token_ids": whole["ids"][:k]}
            assert ask(server, COMPLETIONS, resumed, stream=stream) == whole, f"{stop} behind {k} tokens"
        # Tokens behind the end do not belong to the answer.
        longer = {**body, **extra, **stop, "resume_token_ids": free["ids"][: count + 3]}
        assert ask(server, COMPLETIONS, longer, stream=stream) == whole


def test_the_first_event_has_the_text_so_far_and_one_token_more(server: Server) -> None:
    path, body = BODIES["plain"]
    whole = ask(server, path, {**body, **FIXED}, stream=False)
    first, *_ = server.stream(path, **body, **FIXED, resume_token_ids=whole["ids"][:7])
    assert first["choices"][0]["token_ids"][:8] == whole["ids"][:8]
    assert whole["text"].startswith(first["choices"][0]["text"]) and first["choices"][0]["text"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"n": 2}, "resume_token_ids"),
        (COMPLETIONS, {"best_of": 2}, "resume_token_ids"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt"),
        (COMPLETIONS, {"max_tokens": 2}, "resume_token_ids"),
        (COMPLETIONS, {"max_tokens": 0, "echo": True}, "resume_token_ids"),
        (COMPLETIONS, {"echo": True, "logprobs": 0}, "resume_token_ids"),
        (COMPLETIONS, {"prompt_logprobs": 0}, "resume_token_ids"),
        (COMPLETIONS, {"resume_token_ids": [1, 2, 258]}, "resume_token_ids"),
        (COMPLETIONS, {"resume_token_ids": [-1]}, "resume_token_ids"),
        (COMPLETIONS, {"resume_token_ids": ["x"]}, "resume_token_ids.0"),
        (CHAT, {"n": 2, "messages": MESSAGES}, "resume_token_ids"),
    ],
)
def test_what_cannot_be_resumed_is_refused(server: Server, path: str, fields: dict[str, Any], param: str) -> None:
    body = {"prompt": "Hi", "resume_token_ids": [1, 2, 3]} | fields
    check_error(server.post(path, **body), param)


def test_nothing_to_resume_is_a_plain_request(server: Server) -> None:
    path, body = BODIES["plain"]
    body = {**body, **FIXED}
    assert ask(server, path, {**body, "resume_token_ids": []}, stream=False) == ask(server, path, body, stream=False)


def raw_stream(server: Server, path: str, body: dict[str, Any], **headers: str) -> bytes:
    with server.http(headers=headers) as http, http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        return b"".join(response.iter_raw())


def told(raw: bytes) -> dict[int, list[int]]:
    """Ids in the comments, by choice; each stands above a chunk of its choice, and no other event has one."""
    found: dict[int, list[int]] = {}
    for block in raw.split(b"\n\n"):
        *comments, data = block.split(b"\n")
        choices = json.loads(data[6:])["choices"] if data.startswith(b"data: {") else []
        assert len(comments) == len(choices), block
        for comment, choice in zip(comments, choices, strict=True):
            assert comment.startswith(b": ")
            index, *ids = map(int, comment[2:].split())
            assert index == choice["index"]
            assert "token_ids" not in choice or choice["token_ids"] == ids
            found.setdefault(index, []).extend(ids)
    return found


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_comments_tell_the_tokens_of_each_chunk(server: Server, path: str, n: int) -> None:
    prompt = {"prompt": "Hi"} if path == COMPLETIONS else {"messages": MESSAGES}
    body = {**prompt, **FIXED, "max_tokens": 9, "n": n, "stream_options": {"include_usage": True}}
    whole = server.post(path, **body | {"stream_options": None}).json()
    raw = raw_stream(server, path, body, **{"x-baton-tokens": "1"})
    assert told(raw) == {choice["index"]: choice["token_ids"] for choice in whole["choices"]}
    # Without its comments it is a stream as any other; without the header it has none.
    plain = b"\n".join(line for line in raw.split(b"\n") if not line.startswith(b":"))
    assert len(events_of(plain)) > n
    for headers in ({}, {"x-baton-tokens": "0"}):
        assert b"\n:" not in raw_stream(server, path, body, **headers)


def test_ids_of_what_shows_nothing_yet_come_with_the_next_chunk(server: Server) -> None:
    """With tools, text that may begin a call is held back, and its chunk with it."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    body = {"messages": MESSAGES, "seed": 1, "ignore_eos": True, "max_tokens": 40, "tools": tools}
    whole = server.post(CHAT, **body, return_token_ids=True).json()["choices"][0]["token_ids"]
    assert told(raw_stream(server, CHAT, body, **{"x-baton-tokens": "1"})) == {0: whole}


def test_a_resumed_stream_tells_all_its_ids(server: Server) -> None:
    path, body = BODIES["plain"]
    whole = ask(server, path, {**body, **FIXED}, stream=False)
    raw = raw_stream(server, path, {**body, **FIXED, "resume_token_ids": whole["ids"][:5]}, **{"x-baton-tokens": "1"})
    assert told(raw) == {0: whole["ids"]}
