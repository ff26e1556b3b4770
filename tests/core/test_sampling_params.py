"""SamplingParams: what is accepted, what is refused, and under which name."""

import math

import pytest

from baton.core.errors import RequestError
from baton.core.sampling import MAX_LOGPROBS, Grammar, GrammarKind, SamplingParams

BAD = [
    ("n", 0),
    ("n", True),
    ("n", 1.0),
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", "1"),
    ("temperature", None),
    ("top_k", -2),
    ("top_k", 3.0),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("top_p", math.nan),
    ("min_p", -0.01),
    ("min_p", 1.01),
    ("presence_penalty", 2.01),
    ("frequency_penalty", -2.01),
    ("frequency_penalty", math.nan),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", 1e300),
    ("repetition_penalty", math.nan),
    ("logit_bias", {5: math.inf}),
    ("logit_bias", {5: 100.5}),
    ("logit_bias", {5: 10**400}),
    ("logit_bias", {5: "much"}),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {"5": 1.0}),
    ("logit_bias", [5]),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [-1]),
    ("allowed_token_ids", "12"),
    ("bad_words", [""]),
    ("bad_words", [3]),
    ("bad_words_token_ids", [[]]),
    ("bad_words_token_ids", [3]),
    ("bad_words_token_ids", ["ab"]),
    ("bad_words_token_ids", [[-3]]),
    ("max_tokens", 0),
    ("max_tokens", 2.5),
    ("min_tokens", -1),
    ("min_tokens", 17),
    ("stop", [""]),
    ("stop", [7]),
    ("stop_token_ids", ["a"]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", None),
    ("seed", 1 << 64),
    ("seed", -(1 << 63) - 1),
    ("seed", 0.5),
    ("logprobs", -1),
    ("logprobs", MAX_LOGPROBS + 1),
    ("logprobs", True),
    ("prompt_logprobs", MAX_LOGPROBS + 1),
    ("grammar", "root ::= x"),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda x: str(x)[:20])
def test_refused_in_one_line_that_names_the_field(name: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert str(caught.value).startswith(name)
    assert "\n" not in str(caught.value)


EDGES = [
    {"temperature": 0},
    {"temperature": 1e300},
    {"top_k": -1},
    {"top_k": 10**9},
    {"top_p": 1},
    {"min_p": 1.0},
    {"presence_penalty": -2, "frequency_penalty": 2},
    {"logit_bias": {0: -100, 7: 100.0}},
    {"max_tokens": None, "min_tokens": 10**6},
    {"seed": -(1 << 63)},
    {"seed": (1 << 64) - 1},
    {"logprobs": 0, "prompt_logprobs": MAX_LOGPROBS},
    {"grammar": Grammar(kind=GrammarKind.REGEX, source="a+")},
]


@pytest.mark.parametrize("fields", EDGES, ids=str)
def test_edges_are_accepted(fields: dict[str, object]) -> None:
    params = SamplingParams(**fields)
    assert {name: getattr(params, name) for name in fields} == fields


def test_lists_become_tuples_and_a_lone_string_one_stop() -> None:
    params = SamplingParams(
        stop="end", bad_words=["a", "b"], stop_token_ids=[1], allowed_token_ids=[2, 3], bad_words_token_ids=[[4, 5]]
    )
    assert params.stop == ("end",)
    assert params.bad_words == ("a", "b")
    assert params.stop_token_ids == (1,)
    assert params.allowed_token_ids == (2, 3)
    assert params.bad_words_token_ids == ((4, 5),)


def test_the_caller_keeps_his_own_logit_bias() -> None:
    bias = {3: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[3] = 50.0
    assert params.logit_bias == {3: 1.0}


def test_stop_strings_need_text() -> None:
    with pytest.raises(RequestError, match="detokenize") as caught:
        SamplingParams(stop=["x"], detokenize=False)
    assert caught.value.param == "stop"


def test_greedy_is_no_temperature_or_next_to_none() -> None:
    assert SamplingParams(temperature=0.0).greedy
    assert SamplingParams(temperature=9e-6).greedy
    assert not SamplingParams(temperature=1e-5).greedy


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("logit_bias", {"logit_bias": {10: 1.0}}),
        ("allowed_token_ids", {"allowed_token_ids": [9, 10]}),
        ("bad_words_token_ids", {"bad_words_token_ids": [[1], [2, 10]]}),
    ],
)
def test_token_ids_beyond_the_vocabulary_are_refused(name: str, fields: dict[str, object]) -> None:
    params = SamplingParams(**fields)
    params.check_vocabulary(11)
    with pytest.raises(RequestError) as caught:
        params.check_vocabulary(10)
    assert caught.value.param == name


def test_a_stop_token_beyond_the_vocabulary_is_harmless() -> None:
    SamplingParams(stop_token_ids=[10]).check_vocabulary(10)
