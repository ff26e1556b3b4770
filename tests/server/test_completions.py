"""POST /v1/completions against a stub engine whose tokens an oracle knows (StubRunner.continuation)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from baton.core.request import Request
from baton.core.sampling import SamplingParams
from baton.engine.stub_runner import StubRunner
from baton.text.tokenizer import Tokenizer, load_tokenizer
from tests.server.harness import VOCAB, Server
from tests.server.test_http_cases import check_error

pytestmark = pytest.mark.slow

PATH = "/v1/completions"


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return load_tokenizer(tokenizer_folder)


def oracle(prompt: list[int], count: int, *, seed: int = 1, index: int = 0) -> list[int]:
    """The tokens that the stub engine samples."""
    request = Request(request_id="x", prompt_token_ids=tuple(prompt), params=SamplingParams(seed=seed))
    return StubRunner(16, VOCAB).continuation(request, index, count)


def test_whole_answer(server: Server, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("Hi there")
    answer = server.complete(model="MODEL", prompt="Hi there", max_tokens=9, seed=1, return_token_ids=True)
    tokens = oracle(prompt, 9)
    assert answer["id"].startswith("cmpl-") and answer["object"] == "text_completion" and answer["model"] == "MODEL"
    assert isinstance(answer["created"], int)
    assert answer["choices"] == [
        {
            "index": 0,
            "text": tokenizer.decode(tokens),
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": tokens,
            "prompt_token_ids": prompt,
        }
    ]
    assert {k: v for k, v in answer["usage"].items() if k != "prompt_tokens_details"} == {
        "prompt_tokens": 8,
        "completion_tokens": 9,
        "total_tokens": 17,
    }


@pytest.mark.parametrize("stream", [False, True])
def test_cached_tokens_are_whole_blocks_before_the_last_token(server: Server, stream: bool) -> None:
    """Blocks have 16 tokens; of 48 the last must be computed, so two blocks of three are found."""
    body = {"prompt": [[7 + stream] * 48], "max_tokens": 1, "cache_salt": "only here"}
    assert server.complete(**body)["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    if stream:
        usage = server.stream(PATH, **body, stream_options={"include_usage": True})[-1]["usage"]
    else:
        usage = server.complete(**body)["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 32}


def test_default_max_tokens_is_16_as_far_as_there_is_room(server: Server) -> None:
    assert server.complete(prompt="x")["usage"]["completion_tokens"] == 16
    assert server.complete(prompt=[5] * 2045)["usage"]["completion_tokens"] == 3


def test_answers_with_the_name_asked_for_first(server: Server) -> None:
    assert server.complete(model="alias", prompt="x", max_tokens=1)["model"] == "alias"
    assert server.complete(prompt="x", max_tokens=1)["model"] == "MODEL"


@pytest.mark.parametrize("prompt", [["Hi", "You"], [[72, 105], [5, 6, 7]]], ids=["texts", "ids"])
def test_prompts_times_n_are_indexed_in_order(server: Server, tokenizer: Tokenizer, prompt: Any) -> None:
    body = {"prompt": prompt, "n": 2, "seed": 3, "max_tokens": 5}
    ids = [tokenizer.encode(p) if isinstance(p, str) else p for p in prompt]
    wanted = [tokenizer.decode(oracle(p, 5, seed=3, index=i)) for p in ids for i in (0, 1)]
    answer = server.complete(**body)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in answer["choices"]] == wanted
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert answer["usage"]["completion_tokens"] == 20
    texts = dict.fromkeys(range(4), "")
    for chunk in server.stream(PATH, **body):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert list(texts.values()) == wanted


def test_stream_joins_to_the_whole_and_ends_once(server: Server) -> None:
    body = {"prompt": "Hello", "max_tokens": 40, "seed": 9}
    whole = server.complete(**body)
    chunks = server.stream(PATH, **body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


def test_usage_chunk_and_continuous_usage(server: Server) -> None:
    options = {"include_usage": True}
    body: dict[str, Any] = {"prompt": "Hello", "max_tokens": 7}
    *chunks, last = server.stream(PATH, **body, stream_options=options)
    assert all("usage" not in chunk for chunk in chunks)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 7 and last["usage"]["prompt_tokens"] == 5
    *chunks, last = server.stream(PATH, **body, stream_options={**options, "continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[0] >= 1 and counts[-1] == 7
    assert last["choices"] == [] and last["usage"]["total_tokens"] == 12


def test_stream_interval_groups_all_but_the_first_and_the_last_token(server: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _ = server.stream(PATH, prompt="x", max_tokens=12, stream_interval=5, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    steps = [b - a for a, b in pairwise(counts)]
    assert counts[-1] == 12
    assert all(step >= 5 for step in steps[:-1]), counts


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["Hé!", [72, 105, 5]], ids=["text", "ids"])
def test_echo_with_logprobs(server: Server, tokenizer: Tokenizer, prompt: Any, stream: bool) -> None:
    """lm-eval's loglikelihood request: one entry a token, the prompt's first without logprob, offsets into the text."""
    body = {"prompt": prompt, "max_tokens": 2, "echo": True, "logprobs": 1, "seed": 1}
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    outputs = oracle(ids, 2)
    if stream:
        chunks = [chunk["choices"][0] for chunk in server.stream(PATH, **body)]
        text = "".join(choice["text"] for choice in chunks)
        lists = {k: [entry for choice in chunks for entry in choice["logprobs"][k]] for k in chunks[0]["logprobs"]}
    else:
        choice = server.complete(**body)["choices"][0]
        text, lists = choice["text"], choice["logprobs"]
    assert text == tokenizer.decode(ids) + tokenizer.decode(outputs)
    assert set(lists) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert {len(entries) for entries in lists.values()} == {len(ids) + 2}
    assert lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None
    assert all(lp <= 0 for lp in lists["token_logprobs"][1:])
    for token, lp, top in list(zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True))[1:]:
        assert top[token] == lp
    if isinstance(prompt, str):
        # One token a byte: é is two, neither of which is text; the place of both is behind the H.
        assert lists["tokens"][:4] == ["H", "bytes:\\xc3", "bytes:\\xa9", "!"]
        assert lists["text_offset"][:5] == [0, 1, 1, 2, 3]


def test_echo_scores_only_with_max_tokens_0(server: Server) -> None:
    answer = server.complete(prompt="Hey", max_tokens=0, echo=True, logprobs=0)
    choice = answer["choices"][0]
    assert choice["text"] == "Hey" and choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == ["H", "e", "y"] and choice["logprobs"]["token_logprobs"][0] is None
    assert answer["usage"]["completion_tokens"] == 0 and answer["usage"]["total_tokens"] == 3
    *chunks, last = server.stream(PATH, prompt="Hey", max_tokens=0, echo=True, stream_options={"include_usage": True})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hey"
    assert last["usage"]["completion_tokens"] == 0


def test_max_tokens_0_needs_echo(server: Server) -> None:
    check_error(server.post(PATH, prompt="Hey", max_tokens=0), "max_tokens")


def test_prompt_logprobs_by_token_id(server: Server) -> None:
    entries = server.complete(prompt="ab", max_tokens=1, prompt_logprobs=1)["choices"][0]["prompt_logprobs"]
    assert entries[0] is None and len(entries) == 2
    ((token_id, entry),) = entries[1].items()
    assert entry["decoded_token"] == "b" and entry["rank"] == 1 and entry["logprob"] <= 0 and int(token_id) >= 0


def test_tokens_as_token_ids(server: Server) -> None:
    choice = server.complete(
        prompt="ab", max_tokens=2, logprobs=1, seed=1, return_tokens_as_token_ids=True, return_token_ids=True
    )["choices"][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]


def test_stop_string_ends_the_text_and_names_itself(server: Server, tokenizer: Tokenizer) -> None:
    """The stop string is taken from what the engine is known to generate."""
    tokens = oracle(tokenizer.encode("stop"), 200, seed=5)
    text = tokenizer.decode(tokens)
    place = next(i for i in range(20, len(text)) if text[i : i + 2].isascii() and text[i : i + 2].isalpha())
    stop = text[place : place + 2]
    first = text.index(stop)
    body = {"prompt": "stop", "max_tokens": 200, "seed": 5, "stop": stop}
    choice = server.complete(**body)["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text[:first], "stop", stop)
    chunks = [chunk["choices"][0] for chunk in server.stream(PATH, **body)]
    assert "".join(chunk["text"] for chunk in chunks) == text[:first]
    assert (chunks[-1]["finish_reason"], chunks[-1]["stop_reason"]) == ("stop", stop)
    kept = server.complete(**body, include_stop_str_in_output=True)["choices"][0]["text"]
    assert kept == text[: first + 2]


def test_stop_token_id(server: Server, tokenizer: Tokenizer) -> None:
    tokens = oracle(tokenizer.encode("x"), 10)
    choice = server.complete(prompt="x", max_tokens=50, seed=1, stop_token_ids=[tokens[6]])["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", tokens[6])


def test_best_of_returns_the_likeliest(server: Server, tokenizer: Tokenizer) -> None:
    """Of the n=3 choices of the same seed, the one of highest mean logprob."""
    body = {"prompt": "best", "max_tokens": 6, "seed": 2}
    every = server.complete(**body, n=3, logprobs=0)["choices"]
    best = max(every, key=lambda choice: sum(choice["logprobs"]["token_logprobs"]))
    answer = server.complete(**body, best_of=3)
    assert [choice["text"] for choice in answer["choices"]] == [best["text"]]
    assert answer["choices"][0]["index"] == 0 and answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 18
    check_error(server.post(PATH, **body, best_of=2, n=3), "best_of")
    check_error(server.post(PATH, **body, best_of=2, stream=True), "best_of")


def test_truncate_prompt_tokens_keeps_the_end(server: Server) -> None:
    choice = server.complete(prompt=[1, 2, 3, 4], truncate_prompt_tokens=2, max_tokens=1, return_token_ids=True)
    assert choice["choices"][0]["prompt_token_ids"] == [3, 4]


def test_nulls_are_as_if_not_given(server: Server) -> None:
    names = (
        "max_tokens temperature top_p n stream logprobs echo stop seed suffix logit_bias stream_options best_of user"
    )
    names += (
        " presence_penalty frequency_penalty top_k min_p repetition_penalty ignore_eos min_tokens bad_words priority"
    )
    names += " prompt_logprobs kv_transfer_params structured_outputs response_format cache_salt request_id"
    body = dict.fromkeys(names.split())
    assert server.complete(prompt="x", **body)["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ["a", [1]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [[1], [-2]]}, "prompt.1.0"),
        ({"prompt": "x", "prompt_embeds": "AA"}, "prompt_embeds"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
        ({"prompt": "x", "n": 0}, "n"),
        ({"prompt": "x", "n": 129}, "n"),
        ({"prompt": "x", "best_of": 129}, "best_of"),
        ({"prompt": "x", "best_of": 2, "temperature": 0}, "best_of"),
        ({"prompt": "x", "best_of": 2, "n": 2, "temperature": 0}, "best_of"),
        ({"prompt": "x", "n": 2, "temperature": 0}, "n"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": "x", "stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt": "x", "stream_options": {"include_usage": 3}, "stream": True}, "stream_options.include_usage"),
        ({"prompt": "x", "kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params.do_remote_decode"),
        ({"prompt": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"prompt": "x", "logit_bias": {"99999": 1}}, "logit_bias"),
        ({"prompt": "x", "bad_words": [" "]}, "bad_words"),
        ({"prompt": "x", "bad_words": ["a"] * 1025}, "bad_words"),
        ({"prompt": "x", "bad_words": ["a" * 20_001]}, "bad_words"),
        ({"prompt": ["x"] * 4097}, "prompt"),
        ({"prompt": [[1]] * 33, "best_of": 128}, "prompt"),
        ({"prompt": "x", "min_tokens": 20, "max_tokens": 4}, "min_tokens"),
        ({"prompt": "x", "response_format": {"type": "poem"}}, "response_format"),
    ],
    ids=lambda value: str(value)[:80] if isinstance(value, dict) else None,
)
def test_refused_by_name(server: Server, body: dict[str, Any], param: str) -> None:
    response = server.post(PATH, **body)
    assert response.status_code == 400, response.text
    check_error(response, param)


ODD_TEXTS = ["emoji 🙂👨‍👩‍👧", "e\u0301a\u0308 combining", "日本語 한국어", "नमस्ते", "plain"]


@pytest.mark.parametrize("stop", [None, ["e", "\u00e9"]], ids=["free", "stops"])
def test_streams_join_to_the_whole_text_for_200_prompts(server: Server, stop: list[str] | None) -> None:
    """The stub samples bytes at random: most are no valid UTF-8, some are cut inside a character."""
    for first in range(0, 200, 50):
        prompts = [f"{i} {ODD_TEXTS[i % len(ODD_TEXTS)]}" for i in range(first, first + 50)]
        body = {"prompt": prompts, "max_tokens": 30, "seed": first, "stop": stop}
        whole = server.complete(**body)["choices"]
        texts = dict.fromkeys(range(50), "")
        ends: dict[int, Any] = {}
        for chunk in server.stream(PATH, **body):
            for choice in chunk["choices"]:
                assert choice["index"] not in ends
                texts[choice["index"]] += choice["text"]
                if choice["finish_reason"]:
                    ends[choice["index"]] = (choice["finish_reason"], choice["stop_reason"])
        assert list(texts.values()) == [choice["text"] for choice in whole]
        assert [ends[i] for i in range(50)] == [(choice["finish_reason"], choice["stop_reason"]) for choice in whole]
        assert stop is None or not any(s in text for s in stop for text in texts.values())
        assert stop is None or any(end[0] == "stop" for end in ends.values())
