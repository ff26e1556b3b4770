"""Two halves of an answer made one: what the prefill worker knows of the prompt, and the decode worker's choices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton.router.body import CHAT, COMPLETIONS, read_body
from baton.router.merge import merge
from baton.router.relay import read_first

PROMPT = "abcd"


def usage(prompt: int, output: int, cached: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return found if cached is None else {**found, "prompt_tokens_details": {"cached_tokens": cached}}


def lists(*entries: tuple[int, float | None, str]) -> dict[str, Any]:
    offsets, logprobs, tokens = zip(*entries, strict=True)
    top = [None if value is None else {token: value} for value, token in zip(logprobs, tokens, strict=True)]
    return {
        "text_offset": list(offsets),
        "token_logprobs": list(logprobs),
        "tokens": list(tokens),
        "top_logprobs": top,
    }


def merged(body: dict[str, Any], prefilled: Any, decoded: Any, path: str = COMPLETIONS) -> dict[str, Any]:
    asked = read_body(json.dumps(body).encode(), path)
    given, taken = json.dumps(prefilled).encode(), json.dumps(decoded).encode()
    found: dict[str, Any] = json.loads(merge(asked, read_first(given), given, taken))
    return found


def test_usage_is_of_both() -> None:
    prefilled = {"choices": [{"text": "x"}], "usage": usage(9, 1, 4)}
    decoded = {"id": "a", "choices": [{"text": "xyz"}], "usage": usage(9, 3, 9), "kv_transfer_params": None}
    assert merged({"prompt": PROMPT}, prefilled, decoded) == {
        "id": "a",
        "choices": [{"text": "xyz"}],
        "usage": usage(9, 3, 4),
    }


def test_a_prefill_worker_that_does_not_say_what_was_cached() -> None:
    prefilled = {"choices": [{"text": "x"}], "usage": usage(9, 1, None)}
    assert merged({"prompt": PROMPT}, prefilled, {"choices": [], "usage": usage(9, 3, 5)})["usage"] == usage(9, 3, 5)


def test_an_echo_of_a_text() -> None:
    prefilled = {"choices": [{"text": PROMPT + "x"}], "usage": usage(4, 1, 0)}
    decoded = {"choices": [{"text": "xyz", "logprobs": None}, {"text": "q", "logprobs": None}], "usage": usage(4, 4, 0)}
    found = merged({"prompt": PROMPT, "echo": True}, prefilled, decoded)
    assert [choice["text"] for choice in found["choices"]] == [PROMPT + "xyz", PROMPT + "q"]


def test_an_echo_with_logprobs() -> None:
    """The prompt's entries, then the decode worker's, whose offsets count from the prompt's end."""
    prompt = lists((0, None, "ab"), (2, -0.5, "cd"), (4, -1.0, "x"))
    output = lists((0, -1.0, "x"), (1, -2.0, "yz"))
    prefilled = {"choices": [{"text": "abcdx", "logprobs": prompt}], "usage": usage(2, 1, 0)}
    decoded = {"choices": [{"text": "xyz", "logprobs": output}], "usage": usage(2, 2, 0)}
    (choice,) = merged({"prompt": [1, 2], "echo": True, "logprobs": 1}, prefilled, decoded)["choices"]
    assert choice["text"] == "abcdxyz"
    assert choice["logprobs"] == lists((0, None, "ab"), (2, -0.5, "cd"), (4, -1.0, "x"), (5, -2.0, "yz"))


def test_prompt_logprobs() -> None:
    known = [None, {"5": {"logprob": -1.0}}]
    prefilled = {"choices": [{"text": "x", "prompt_logprobs": known}], "usage": usage(2, 1, 0)}
    decoded = {"choices": [{"text": "xy"}, {"text": "z"}], "usage": usage(2, 3, 0)}
    found = merged({"prompt": PROMPT, "prompt_logprobs": 1}, prefilled, decoded)
    assert [choice["prompt_logprobs"] for choice in found["choices"]] == [known, known]
    chat = {"choices": [{"message": {"content": "x"}}], "usage": usage(2, 1, 0), "prompt_logprobs": known}
    found = merged({"messages": [], "prompt_logprobs": 1}, chat, decoded, CHAT)
    assert found["prompt_logprobs"] == known


@pytest.mark.parametrize("decoded", [[], "x", {"usage": 3, "choices": []}, {"choices": 3, "usage": usage(1, 1, 1)}])
def test_what_does_not_fit(decoded: Any) -> None:
    prefilled = {"choices": [{"text": PROMPT + "x"}], "usage": usage(4, 1, 0)}
    with pytest.raises(ValueError, match="do not fit"):
        merged({"prompt": PROMPT, "echo": True}, prefilled, decoded)
