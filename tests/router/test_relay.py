"""Which first tokens go to the client at once, and as which events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton.router.body import CHAT, COMPLETIONS, Asked, read_body
from baton.router.relay import First, may_relay, read_first, relayable, relayed_events

TEXT = {"prompt": "abcdefgh", "max_tokens": 5, "stream": True}
TALK = {"messages": [], "stream": True}


def read(body: Any, path: str = COMPLETIONS) -> Asked:
    return read_body(json.dumps(body).encode(), path)


def first(text: str = "hi", reason: str = "length", prompt_tokens: int = 8, **choice: Any) -> First:
    body = {
        "id": "cmpl-1",
        "created": 7,
        "model": "m",
        "choices": [{"index": 0, "text": text, "finish_reason": reason, **choice}],
        "usage": {"prompt_tokens": prompt_tokens, "prompt_tokens_details": {"cached_tokens": 2}},
        "kv_transfer_params": {"a": 1},
    }
    return read_first(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("fields", "path", "fits"),
    [
        (TEXT, COMPLETIONS, True),
        (TALK, CHAT, True),
        ({**TALK, "stream_options": {"include_usage": True}, "n": 1}, CHAT, True),
        ({**TEXT, "min_tokens": 5}, COMPLETIONS, True),
        ({**TEXT, "response_format": {"type": "json_object"}}, COMPLETIONS, True),
        ({**TEXT, "stream": False}, COMPLETIONS, False),
        ({**TEXT, "n": 2}, COMPLETIONS, False),
        ({**TEXT, "best_of": 1}, COMPLETIONS, False),
        ({**TEXT, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}, COMPLETIONS, False),
        ({**TALK, "tools": [{}]}, CHAT, False),
        # Only the decode worker would refuse these, after the client was told 200.
        ({**TEXT, "stream_interval": 0}, COMPLETIONS, False),
        ({**TEXT, "min_tokens": 6}, COMPLETIONS, False),
        ({**TEXT, "max_tokens": 0}, COMPLETIONS, False),
        ({**TEXT, "max_tokens": -1}, COMPLETIONS, False),
        ({**TEXT, "prompt_logprobs": 1}, COMPLETIONS, False),
    ],
)
def test_requests(fields: dict[str, Any], path: str, fits: bool) -> None:
    assert relayable(read(fields, path)) is fits


@pytest.mark.parametrize(
    ("text", "stop", "fits"),
    [
        ("hi", None, True),
        ("", None, True),
        ("hi\ufffd", None, False),
        ("hi", "hi", False),
        ("hi", "h", False),
        ("hi", "i there", False),
        ("hi", ["x", "hi!"], False),
        ("hi", ["hx", "x", ""], True),
    ],
)
def test_texts(text: str, stop: Any, fits: bool) -> None:
    """Not what a server would hold back: half a character, a stop string or what may be the begin of one."""
    assert may_relay(read({**TEXT, "stop": stop}), first(text), 2048) is fits


def test_an_answer_that_is_over_or_does_not_fit_is_not_relayed() -> None:
    asked = read(TEXT)
    assert not may_relay(asked, first(reason="stop"), 2048)
    assert may_relay(asked, first(prompt_tokens=8), 13) and not may_relay(asked, first(prompt_tokens=9), 13)
    assert not may_relay(asked, first(), 0)


def test_events_of_a_completion() -> None:
    logprobs = {"text_offset": [0], "token_logprobs": [-1.5], "tokens": ["hi"], "top_logprobs": [{"hi": -1.5}]}
    (event,) = relayed_events(read(TEXT), first(logprobs=logprobs))
    assert event.startswith(b"data: ") and event.endswith(b"}\n\n")
    shown = json.loads(event[6:])
    choice = {"index": 0, "text": "hi", "logprobs": logprobs, "finish_reason": None, "stop_reason": None}
    assert shown == {"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m", "choices": [choice]}


def test_events_of_a_chat() -> None:
    message = {"role": "assistant", "content": "hi"}
    opening, content = relayed_events(read(TALK, CHAT), first(message=message, logprobs={"content": [1]}))
    assert json.loads(opening[6:])["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    choice = json.loads(content[6:])["choices"][0]
    assert choice["delta"] == {"content": "hi"} and choice["logprobs"] == {"content": [1]}
    assert choice["finish_reason"] is None and json.loads(content[6:])["object"] == "chat.completion.chunk"


def test_a_ticket() -> None:
    assert first().has_ticket
    for params in (b"null", b"{}"):
        assert not read_first(b'{"kv_transfer_params": ' + params + b"}").has_ticket
    assert not read_first(b"{}").has_ticket
