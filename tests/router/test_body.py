"""What the router reads of a body, and the bodies it makes of it. Field rules: HANDOFF section 5, docs/api.md."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from baton.router.body import CHAT, COMPLETIONS, Asked, decode_body, new_seed, prefill_body, read_body, whole_body
from baton.web.errors import ApiError

TEXT = {"prompt": "abcdefgh", "max_tokens": 5}
SEED = Raw(b"77")


def read(body: Any, path: str = COMPLETIONS) -> Asked:
    return read_body(json.dumps(body).encode(), path)


@pytest.mark.parametrize(
    ("body", "path", "num_prompt", "num_new"),
    [
        ({"prompt": "x" * 400}, COMPLETIONS, 100, 16),
        ({"prompt": [1, 2, 3], "max_tokens": 7, "n": 2}, COMPLETIONS, 3, 14),
        ({"prompt": [[1, 2], [3]], "max_tokens": 7}, COMPLETIONS, 3, 7),
        ({"prompt": "", "max_tokens": None}, COMPLETIONS, 1, 16),
        ({"messages": [{"role": "user", "content": "x" * 372}]}, CHAT, 101, 1024),
        ({"messages": [], "max_tokens": 9, "max_completion_tokens": 3}, CHAT, 1, 3),
    ],
)
def test_sizes(body: dict[str, Any], path: str, num_prompt: int, num_new: int) -> None:
    """Ids are counted, four bytes of text are a token; the limits are OpenAI's."""
    demand = read(body, path).demand
    assert (demand.num_prompt_tokens, demand.num_new_tokens) == (num_prompt, num_new)


def test_a_demand() -> None:
    asked = read_body(b'{"prompt": "ab cd", "model": "m", "priority": "3"}', COMPLETIONS, session="s")
    demand = asked.demand
    assert (demand.model, demand.priority, demand.session, demand.splittable) == ("m", 3, "s", True)
    longer = read({"prompt": "ab cde"}).demand.prefix
    assert demand.prefix.startswith(b"ab cd") and longer.startswith(b"ab cd")


@pytest.mark.parametrize(
    ("fields", "splittable"),
    [
        ({}, True),
        ({"n": 3}, True),
        ({"logprobs": 2, "echo": True}, True),
        ({"echo": True}, True),
        ({"prompt": [1, 2, 3]}, True),
        ({"prompt_logprobs": 1}, True),
        ({"best_of": 2, "n": 2}, True),
        ({"best_of": 2}, False),
        ({"prompt": ["a", "b"]}, False),
        ({"prompt": [[1], [2]]}, False),
        ({"prompt": None}, False),
        ({"max_tokens": 0, "echo": True}, False),
        ({"echo": True, "stream": True}, False),
        ({"echo": True, "prompt": [1, 2]}, False),
        ({"echo": True, "truncate_prompt_tokens": 4}, False),
        ({"use_beam_search": True}, False),
        ({"resume_token_ids": [1]}, False),
        ({"n": "many"}, False),
    ],
)
def test_what_two_workers_can_share(fields: dict[str, Any], splittable: bool) -> None:
    assert read({**TEXT, **fields}).demand.splittable is splittable


def test_the_prefill_leg_has_one_token_of_one_choice() -> None:
    fields = {"stream": True, "stream_options": {"include_usage": True}, "stream_interval": 3, "n": 4, "best_of": 4}
    asked = read({**TEXT, **fields, "min_tokens": 3, "temperature": 0.5, "logprobs": 1, "echo": True})
    made = json.loads(prefill_body(asked, {"transfer_id": "t"}, SEED))
    assert made == {
        "prompt": "abcdefgh",
        "max_tokens": 1,
        "min_tokens": 1,
        "temperature": 0.5,
        "logprobs": 1,
        "echo": True,
        "seed": 77,
        "kv_transfer_params": {"transfer_id": "t"},
    }
    chat = read({"messages": [], "max_completion_tokens": 9, "min_tokens": 0}, CHAT)
    assert json.loads(prefill_body(chat, {}, None)) == {
        "messages": [],
        "max_completion_tokens": 1,
        "max_tokens": 1,
        "min_tokens": 0,
        "kv_transfer_params": {},
    }


def test_the_decode_leg_is_the_request_without_what_prefill_answers() -> None:
    asked = read({**TEXT, "echo": True, "prompt_logprobs": 2, "n": 3, "seed": 5})
    made = json.loads(decode_body(asked, Raw(b'{"odd":[1]}'), SEED))
    assert made == {**TEXT, "n": 3, "seed": 5, "kv_transfer_params": {"odd": [1]}}
    assert "kv_transfer_params" not in json.loads(decode_body(asked, None, SEED))


def test_one_worker_gets_the_request_as_it_is() -> None:
    asked = read({**TEXT, "echo": True, "kv_transfer_params": {"remote_host": "evil"}})
    assert json.loads(whole_body(asked, None)) == {**TEXT, "echo": True}
    assert json.loads(whole_body(asked, SEED, b"4,5")) == {**TEXT, "echo": True, "seed": 77, "resume_token_ids": [4, 5]}


def test_a_seed_is_added_only_where_there_is_none() -> None:
    assert json.loads(whole_body(read({**TEXT, "seed": 3}), SEED))["seed"] == 3
    assert json.loads(whole_body(read({**TEXT, "seed": None}), SEED))["seed"] == 77
    assert 0 <= int(bytes(new_seed())) < 1 << 63


@pytest.mark.parametrize(
    "raw",
    [
        b'{"prompt": "a", "kv_transfer_params": {"x": 1}}',
        b'{"prompt": "a", "kv_transfer_\\u0070arams": {"x": 1}}',
        b'{"kv_transfer_params": 1, "prompt": "a", "kv_transfer_params": {"x": 1}}',
        b'{"prompt": "a", "user": NaN, "kv_transfer_params": {"x": 1}}',
        '{"prompt": "a", "kv_transfer_params": {"x": 1}}'.encode("utf-16"),
        b'{"prompt": "a\\ud800", "user": Infinity, "kv_transfer_params": {"x": 1}}',
    ],
)
def test_what_is_not_a_clients_to_say_never_passes(raw: bytes) -> None:
    """Not even in JSON that only Python's reader takes: servers of others use that."""
    made = json.loads(whole_body(read_body(raw, COMPLETIONS), None))
    assert "kv_transfer_params" not in made and made["prompt"].startswith("a")


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'"x"', b"null", b'{"prompt": "a"} x', b"\xff\xfe"])
def test_what_is_no_object_is_for_a_worker_to_refuse(raw: bytes) -> None:
    asked = read_body(raw, COMPLETIONS)
    assert whole_body(asked, SEED) == raw and not asked.demand.splittable and asked.odd


def test_long_nonsense_is_refused_here() -> None:
    with pytest.raises(ApiError) as caught:
        read_body(b"{" + b" " * (2 << 20), COMPLETIONS)
    assert caught.value.status == 400


def test_a_long_prompt_passes_through_as_it_came() -> None:
    """Escapes and spacing inside are nobody's business here."""
    raw = b'{"prompt": "a\\u0062\\/c", "max_tokens":  2, "stop": [ "x" ]}'
    made = whole_body(read_body(raw, COMPLETIONS), SEED)
    assert b'"a\\u0062\\/c"' in made and b'[ "x" ]' in made
