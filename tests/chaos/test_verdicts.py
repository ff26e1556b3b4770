"""A verdict must see what is wrong: each way to be wrong is given once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.answers import Answer, Choice, difference, whole
from tests.chaos.asks import draw_asks
from tests.chaos.faults import KINDS, draw_faults
from tests.chaos.verdicts import Downtime, Seen, Verdict, judge

RIGHT = Answer({0: Choice("abc", [97, 98, 99], "length", [("a", -1.0), ("b", -2.0), ("c", -3.0)])}, (5, 3))
NEVER = Downtime()


def answer(text: str = "abc", ids: list[int] | None = None, finish: str | None = "length", **more: Any) -> Answer:
    """RIGHT, changed."""
    logprobs = more.get("logprobs", [("a", -1.0), ("b", -2.0), ("c", -3.0)])
    return Answer({0: Choice(text, [97, 98, 99] if ids is None else ids, finish, logprobs)}, more.get("usage", (5, 3)))


def seen(**fields: Any) -> Seen:
    """A client that saw this between seconds 1 and 2."""
    return Seen(**{"number": 0, "started_s": 1.0, "ended_s": 2.0, "status": 200, **fields})


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (answer(), ""),
        (answer(text="abd"), "text differs at 2"),
        (answer(text="ab"), "text differs at 2"),
        (answer(text="abcd"), "text differs at 3"),
        (answer(ids=[97, 99, 99]), "token_ids differs at 1"),
        (answer(ids=[97, 98]), "token_ids differs at 2"),
        (answer(finish="stop"), "finish_reason stop"),
        (answer(finish=None), "finish_reason None"),
        (answer(usage=(5, 2)), "usage"),
        (answer(logprobs=[("a", -1.0), ("b", -2.1), ("c", -3.0)]), "logprob 1"),
        (answer(logprobs=[("a", -1.0), ("x", -2.0), ("c", -3.0)]), "logprob 1"),
        (answer(logprobs=[("a", -1.0), ("b", -2.0)]), "2 logprobs instead of 3"),
        (Answer(), "choices [] instead of [0]"),
        (Answer({0: RIGHT.choices[0], 1: Choice()}), "choices [0, 1] instead of [0]"),
    ],
)
def test_a_whole_answer(given: Answer, word: str) -> None:
    words = difference(given, RIGHT, complete=True)
    assert words.startswith(word) or word in words
    assert bool(words) == bool(word)


@pytest.mark.parametrize(
    ("given", "right"),
    [
        (Answer(), True),
        (Answer({0: Choice("ab", [97], None, [("a", -1.0)])}), True),
        (Answer({0: Choice("b")}), False),
        (Answer({0: Choice("abcd")}), False),
        (Answer({0: Choice("ab", [97, 97])}), False),
        (Answer({1: Choice("")}), False),
        (Answer({0: Choice("abc", [97, 98, 99], "stop")}), False),
    ],
)
def test_the_beginning_of_an_answer(given: Answer, right: bool) -> None:
    assert (difference(given, RIGHT, complete=False) == "") is right


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        (seen(answer=RIGHT, done=True), Verdict.RIGHT),
        (seen(answer=answer(text="xyz"), done=True), Verdict.WRONG),
        (seen(answer=answer(text="xyz"), error="the engine died", done=True), Verdict.WRONG),
        (seen(answer=answer(text="xyz"), left=True), Verdict.WRONG),
        (seen(answer=answer(text="ab", ids=[], finish=None, logprobs=[]), error="gone", done=True), Verdict.CUT),
        (seen(answer=answer(text="ab", ids=[], finish=None, logprobs=[]), left=True), Verdict.LEFT),
        (seen(answer=answer(), broken="cut"), Verdict.BROKEN),  # all tokens, but no [DONE]
        (seen(status=0, broken="reset"), Verdict.BROKEN),
        (seen(status=0, hung=True), Verdict.HANG),
        (seen(status=503, error="all workers are down", done=True), Verdict.ERROR),
        (seen(status=503, error=""), Verdict.UNCLEAR),
        (seen(status=400, error="prompt is too long"), Verdict.UNCLEAR),
        (seen(status=404, error="no such model"), Verdict.UNCLEAR),
    ],
)
def test_a_verdict(given: Seen, verdict: Verdict) -> None:
    assert judge(given, RIGHT, NEVER)[0] is verdict


@pytest.mark.parametrize(("span_s", "excused"), [((0.0, 0.9), False), ((2.1, 3.0), False), ((1.5, 9.0), True)])
def test_only_a_router_that_was_down_meanwhile_excuses_a_broken_connection(
    span_s: tuple[float, float], excused: bool
) -> None:
    verdict, _ = judge(seen(status=0, broken="reset"), RIGHT, Downtime([span_s]))
    assert verdict is (Verdict.NO_ROUTER if excused else Verdict.BROKEN)


def test_a_router_that_was_down_excuses_no_wrong_token() -> None:
    given = seen(answer=answer(text="b"), broken="reset")
    assert judge(given, RIGHT, Downtime([(0.0, 9.0)]))[0] is Verdict.WRONG


def test_chunks_make_the_answer_of_the_whole_body() -> None:
    """Both forms of logprobs; a role chunk and a usage chunk add nothing to the text."""
    answer = Answer()
    for choice in (
        {"delta": {"role": "assistant", "content": ""}},
        {"delta": {"content": "a"}, "token_ids": [97], "logprobs": {"content": [{"token": "a", "logprob": -1.0}]}},
        {"delta": {}, "finish_reason": "length"},
    ):
        answer.add({"choices": [{"index": 0, **choice}]})
    answer.add({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}})
    body = {"index": 0, "text": "a", "token_ids": [97], "finish_reason": "length"}
    body["logprobs"] = {"tokens": ["a"], "token_logprobs": [-1.0]}
    usage = {"prompt_tokens": 5, "completion_tokens": 1}
    assert answer == whole({"choices": [body], "usage": usage})


def test_draws_are_of_their_seed_and_of_every_kind() -> None:
    assert draw_asks(1, 50) == draw_asks(1, 50) != draw_asks(2, 50)
    assert any(ask.body.get("n") for ask in draw_asks(1, 100))
    faults = draw_faults(1, len(KINDS), ["prefill-0", "decode-0"])
    assert {fault.kind for fault in faults} == set(KINDS)
    assert faults == draw_faults(1, len(KINDS), ["prefill-0", "decode-0"])
