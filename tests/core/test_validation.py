"""The rules of check_request, one by one."""

import pytest

from baton.core.errors import RequestError
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
