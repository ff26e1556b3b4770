"""Which token ends a sequence, and why."""

import pytest

from baton.core.request import FinishReason, Request
from baton.core.sampling import SamplingParams
from baton.core.stops import Stop, first_stop, stop_after, token_limit

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
EOS = 2


def request(**params: object) -> Request:
    return Request(
        request_id="r",
        prompt_token_ids=(1, 1, 1),
        params=SamplingParams(**{"max_tokens": 10, **params}),  # type: ignore[arg-type]
        eos_token_ids=frozenset({EOS, 3}),
    )


@pytest.mark.parametrize(
    ("params", "token", "number", "stop"),
    [
        ({}, 7, 1, None),
        ({}, EOS, 1, Stop(STOP)),
        ({}, 3, 1, Stop(STOP)),
        ({"ignore_eos": True}, EOS, 1, None),
        ({"stop_token_ids": (7,)}, 7, 1, Stop(STOP, 7)),
        ({"stop_token_ids": (7,)}, 8, 1, None),
        # The model's own end wins; as a stop token it counts only when eos is ignored.
        ({"stop_token_ids": (EOS,)}, EOS, 1, Stop(STOP)),
        ({"stop_token_ids": (EOS,), "ignore_eos": True}, EOS, 1, Stop(STOP, EOS)),
        # min_tokens counts the token itself.
        ({"min_tokens": 3}, EOS, 2, None),
        ({"min_tokens": 3}, EOS, 3, Stop(STOP)),
        ({"min_tokens": 3, "stop_token_ids": (7,)}, 7, 2, None),
        ({"min_tokens": 3, "stop_token_ids": (7,)}, 7, 3, Stop(STOP, 7)),
        ({}, 7, 9, None),
        ({}, 7, 10, Stop(LENGTH)),
        # Both on one token: STOP wins.
        ({}, EOS, 10, Stop(STOP)),
        ({"min_tokens": 10}, EOS, 9, None),
    ],
)
def test_stop_after(params: dict[str, object], token: int, number: int, stop: Stop | None) -> None:
    made = request(**params)
    assert stop_after(made, token, number, token_limit(made, 100)) == stop


def test_the_limit_counts_prompt_and_outputs() -> None:
    assert token_limit(request(max_tokens=10), 100) == 13
    assert token_limit(request(max_tokens=10), 8) == 8
    assert token_limit(request(max_tokens=None), 100) == 100
    assert stop_after(request(max_tokens=None), 7, 4, 8) is None
    assert stop_after(request(max_tokens=None), 7, 5, 8) == Stop(LENGTH)


@pytest.mark.parametrize(
    ("params", "tokens", "found"),
    [
        ({}, (), (0, None)),
        ({}, (7, 8), (2, None)),
        ({"stop_token_ids": (7,)}, (8, 7), (2, Stop(STOP, 7))),
        ({"stop_token_ids": (7,)}, (8, 7, 9), (2, Stop(STOP, 7))),
        ({"stop_token_ids": (7,), "min_tokens": 3}, (8, 7, 9), (3, None)),
        ({"max_tokens": 2}, (8, 7), (2, Stop(LENGTH))),
        ({"max_tokens": 2}, (8, 7, 6), (2, Stop(LENGTH))),
    ],
)
def test_the_first_stop_among_tokens(
    params: dict[str, object], tokens: tuple[int, ...], found: tuple[int, Stop | None]
) -> None:
    assert first_stop(request(**params), tokens, 100) == found
