"""Reading a stream of events, in whatever pieces it comes."""

from __future__ import annotations

import json

import pytest

from baton.bench.answer import Answer


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def text(said: str, **more: object) -> bytes:
    return event({"choices": [{"index": 0, "text": said, **more}]})


USAGE = event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9}})
DONE = b"data: [DONE]\n\n"
WHOLE = b": a comment\n" + text("a", token_ids=[1, 2]) + text("") + text("\u00e9\n") + USAGE + DONE


def read(*pieces: bytes) -> Answer:
    answer = Answer()
    for number, piece in enumerate(pieces):
        answer.feed(piece, float(number))
    answer.close()
    return answer


def test_a_whole_answer() -> None:
    answer = read(WHOLE)
    assert (answer.text, answer.error) == ("a\u00e9\n", "")
    assert (answer.input_tokens, answer.output_tokens) == (5, 9)
    assert (answer.token_ids, len(answer.chunk_s)) == ([1, 2], 3)


@pytest.mark.parametrize("end_of_line", [b"\n", b"\r\n"])
def test_it_may_be_cut_anywhere(end_of_line: bytes) -> None:
    whole = WHOLE.replace(b"\n", end_of_line)
    for cut in range(len(whole)):
        answer = read(whole[:cut], whole[cut:])
        assert (answer.text, answer.error, len(answer.chunk_s)) == ("a\u00e9\n", "", 3)


def test_a_piece_has_the_time_at_which_its_line_ends() -> None:
    first = text("a")
    assert read(first[:-1], first[-1:] + text("b"), DONE).chunk_s == [0.0, 1.0]
    assert read(first[:-2], first[-2:] + text("b"), DONE).chunk_s == [1.0, 1.0]


def test_the_event_that_names_a_speaker_is_no_piece() -> None:
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    answer = read(role, event({"choices": [{"delta": {"content": "x"}}]}), DONE)
    assert (answer.text, answer.chunk_s) == ("x", [1.0])
    spoken = event({"choices": [{"delta": {"role": "assistant", "content": "y"}}]})
    assert read(spoken, DONE).text == "y"


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ((text("a"),), "without [DONE]"),
        ((USAGE, DONE), "no token"),
        ((text("a"), event({"error": {"message": "broken"}}), DONE), "broken"),
        ((b"data: {nonsense\n\n", DONE), "no chunk"),
    ],
)
def test_what_goes_wrong_is_said(pieces: tuple[bytes, ...], words: str) -> None:
    assert words in read(*pieces).error
