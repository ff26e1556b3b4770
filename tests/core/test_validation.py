"""The rules of check_request, one by one."""

from dataclasses import replace
from typing import Any

import pytest

from baton.core.errors import RequestError
from baton.core.handoff import Handoff
from baton.core.request import Request
from baton.core.sampling import SamplingParams
from baton.core.validation import check_request


def request(prompt: tuple[int, ...], **params: object) -> Request:
    return Request(request_id="r", prompt_token_ids=prompt, params=SamplingParams(**params))  # type: ignore[arg-type]


def test_a_prompt_that_leaves_room_for_one_token_passes() -> None:
    check_request(request((0, 9, 3)), vocab_size=10, max_model_len=4)


@pytest.mark.parametrize(
    ("bad", "param", "words"),
    [
        (request(()), "prompt", "empty"),
        (request((1, 2, 3, 4)), "prompt", "4 tokens and max_model_len is 4"),
        (request((10,)), "prompt", "token id 10, outside the vocabulary of 10"),
        (request((-1,)), "prompt", "token id -1"),
        (request((1,), logit_bias={10: 1.0}), "logit_bias", "below the vocabulary size 10, got 10"),
    ],
)
def test_what_cannot_run_is_refused_by_name(bad: Request, param: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        check_request(bad, vocab_size=10, max_model_len=4)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("resumed", "params", "fields", "words"),
    [
        ((10,), {}, {}, "token id 10, outside the vocabulary of 10"),
        ((1, 2, 3), {"max_tokens": 2}, {}, "has 3 tokens; max_tokens and max_model_len leave room for 2"),
        ((1, 2, 3), {"max_tokens": None}, {}, "leave room for 2"),
        ((1,), {"n": 2, "seed": 1}, {}, "n=1 only, got n=2"),
        ((1,), {}, {"handoff": Handoff(transfer_id="t")}, "not possible with a hand-off"),
        ((1,), {"prompt_logprobs": 0}, {}, "logprobs of the prompt"),
    ],
)
def test_what_cannot_be_resumed_is_refused(
    resumed: tuple[int, ...], params: dict[str, object], fields: dict[str, Any], words: str
) -> None:
    check_request(replace(request((1, 2)), resumed=(1, 2)), vocab_size=10, max_model_len=4)
    with pytest.raises(RequestError, match=words) as caught:
        check_request(replace(request((1, 2), **params), resumed=resumed, **fields), vocab_size=10, max_model_len=4)
    assert caught.value.param == "resume_token_ids"
