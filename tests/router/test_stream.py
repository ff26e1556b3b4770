"""Streams on their way: bytes stay as they are; whoever goes on with an answer repeats nothing and loses nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.router.shown import MismatchError, Shown, Skip
from baton.router.stream import EventStream, RawStream
from baton.router.usage import PromptUsage

DONE = b"data: [DONE]\n\n"
TOKENS = st.lists(st.text(alphabet='ab\u00e9\U0001f600 \n"', max_size=2), min_size=1, max_size=12)


def encoded(chunk: dict[str, Any], ids: Sequence[int] | None = None) -> bytes:
    comment = "" if ids is None else ": " + " ".join(map(str, (0, *ids))) + "\n"
    return f"{comment}data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode()


def piece(text: str, *, chat: bool, finish: str | None = None, entries: Sequence[str] = ()) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    if chat:
        choice |= {"delta": {"content": text}, "logprobs": {"content": list(entries)} if entries else None}
    else:
        names = ("text_offset", "token_logprobs", "tokens", "top_logprobs")
        choice |= {"text": text, "logprobs": {name: list(entries) for name in names} if entries else None}
    return {"created": 5, "choices": [choice]}


def server_stream(
    tokens: Sequence[str], groups: Sequence[int], *, chat: bool, logprobs: bool = False, known: int = 0
) -> list[bytes]:
    """The events of one of our servers for an answer of these token texts (token i has id i).

    Args:
        groups: tokens of each event; the rest is in the last.
        known: tokens that the request resumed, which have no logprobs.
    """
    events = [encoded({"created": 5, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}, [])]
    events = events if chat else []
    start = 0
    for size in (*groups, len(tokens)):
        end = min(len(tokens), start + max(1, size))
        if start == end:
            break
        entries = [f"e{i}" for i in range(max(start, known), end)] if logprobs else []
        finish = "stop" if end == len(tokens) else None
        events.append(
            encoded(piece("".join(tokens[start:end]), chat=chat, finish=finish, entries=entries), range(start, end))
        )
        start = end
    return [*events, DONE]


def read(raw: bytes) -> tuple[str, int, int, list[str]]:
    """Text, openings, endings and logprob entries of what a client got."""
    text, opened, ended, entries = "", 0, 0, []
    for block in raw.split(b"\n\n")[:-1]:
        assert block.startswith(b"data: ")
        if block == DONE.strip():
            continue
        (choice,) = json.loads(block[6:])["choices"]
        delta = choice.get("delta", {})
        text += delta.get("content") or choice.get("text") or ""
        opened += "role" in delta
        ended += choice.get("finish_reason") is not None
        logprobs = choice.get("logprobs") or {}
        entries += logprobs.get("content") or logprobs.get("tokens") or []
    return text, opened, ended, entries


def cut(raw: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted({place % (len(raw) + 1) for place in places} | {len(raw)})
    return [raw[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(TOKENS, st.lists(st.integers(1, 3)), st.lists(st.integers(0, 5000)), st.booleans())
def test_comments_are_taken_out_and_nothing_else_is_changed(
    tokens: list[str], groups: list[int], places: list[int], chat: bool
) -> None:
    """However the bytes are cut."""
    events = server_stream(tokens, groups, chat=chat)
    stream, shown = EventStream(shown=(noted := Shown()), skip=None, usage=None), b""
    for part in cut(b"".join(events), places):
        shown += stream.feed(part)
    assert shown == b"".join(event[event.index(b"data: ") :] for event in events)
    assert stream.done and stream.error is None
    assert noted.ids == ",".join(map(str, range(len(tokens)))).encode() and noted.resumable and noted.finished


@given(TOKENS, st.data(), st.booleans(), st.booleans())
def test_going_on_elsewhere(tokens: list[str], data: st.DataObject, chat: bool, logprobs: bool) -> None:
    """A stream breaks after any number of its events; another worker resumes, with events of its own sizes."""
    sizes = st.lists(st.integers(1, 3), max_size=6)
    first = server_stream(tokens, data.draw(sizes), chat=chat, logprobs=logprobs)
    num_events = data.draw(st.integers(0, len(first) - 1))
    shown, got = Shown(), b""
    stream = EventStream(shown=shown, skip=None, usage=None)
    for event in first[:num_events]:
        got += stream.feed(event)
    resumed = len(shown.ids.split(b",")) if shown.ids else 0
    assert shown.num_tokens == resumed
    second = server_stream(tokens, data.draw(sizes), chat=chat, logprobs=logprobs, known=resumed)
    again = EventStream(shown=shown, skip=shown.rest_of(logprobs=0), usage=None)
    for event in second:
        got += again.feed(event)
    entries = [f"e{i}" for i in range(len(tokens))] if logprobs else []
    assert read(got) == ("".join(tokens), int(chat), 1, entries)
    assert got.endswith(DONE) and shown.num_tokens == len(tokens) and again.done
    assert shown.ids == ",".join(map(str, range(len(tokens)))).encode()


@given(TOKENS, st.lists(st.integers(1, 3), max_size=6), st.booleans(), st.booleans())
def test_a_relayed_first_token(tokens: list[str], groups: list[int], chat: bool, logprobs: bool) -> None:
    """The client has token 1 from elsewhere; the decode worker's stream begins with it."""
    shown, got = Shown(), b""
    entries = ["e0"] if logprobs else []
    opening = [encoded({"created": 4, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})]
    for event in [*(opening if chat else []), encoded(piece(tokens[0], chat=chat, entries=entries))]:
        shown.add(event, b"", int(event not in opening))
        got += event
    shown.created = b"4"
    assert not shown.resumable
    stream = EventStream(shown=shown, skip=shown.rest_of(logprobs=int(logprobs)), usage=None)
    for event in server_stream(tokens, groups, chat=chat, logprobs=logprobs):
        got += stream.feed(event)
    entries = [f"e{i}" for i in range(len(tokens))] if logprobs else []
    assert read(got) == ("".join(tokens), int(chat), 1, entries)
    assert shown.resumable and shown.num_tokens == len(tokens)


def skip(text: str, num_tokens: int) -> Skip:
    return Skip(text=text, num_tokens=num_tokens, num_logprobs=0, opened=True, finished=False, created=b"")


@pytest.mark.parametrize("events", [["x"], ["ax"], ["a", "x"], ["a"]])
def test_another_text_is_never_passed_on(events: list[str]) -> None:
    left = skip("ab", 2)
    with pytest.raises(MismatchError):
        for number, text in enumerate(events):
            finish = "stop" if number == len(events) - 1 else None
            assert left.apply(encoded(piece(text, chat=False, finish=finish)), 1) == b""


def test_tokens_without_text_are_counted() -> None:
    """Half a character is an event of its own; only the halves that the client has are left out."""
    left = skip("a", 2)
    texts = [left.apply(encoded(piece(text, chat=False)), 1) for text in ("a", "", "", "\u00e9")]
    assert [bool(text) for text in texts] == [False, False, True, True] and left.over


def test_long_answers_are_kept_as_text() -> None:
    shown = Shown()
    for number in range(2000):
        shown.add(encoded(piece("x" * 30, chat=False)), str(number).encode(), 1)
    assert len(shown._events) < 1000 and len(shown.rest_of(logprobs=0).text) == 60_000
    assert shown.ids.count(b",") == 1999


def test_errors_end_a_stream() -> None:
    said = b'data: {"error":{"message":"m","code":503}}\n\n'
    stream = EventStream(shown=None, skip=None, usage=None)
    part = encoded(piece("a", chat=False))
    assert stream.feed(part + said + DONE) == part and stream.error == said and not stream.done
    raw = RawStream()
    assert raw.feed(said + DONE) == b"" and raw.error == said
    raw = RawStream()
    assert raw.feed(part) == part and raw.feed(said + DONE) == said + DONE and raw.error is None and raw.done


@given(st.lists(st.integers(0, 5000)))
def test_raw_streams(places: list[int]) -> None:
    """Their end is found however it is cut; without it they are not done."""
    whole = b"".join(encoded(piece(text, chat=False)) for text in ("a", "[DONE]", "b"))
    for end, done in ((DONE, True), (b"", False)):
        stream = RawStream()
        assert b"".join(stream.feed(part) for part in cut(whole + end, places) if part) == whole + end
        assert stream.done is done


def test_usage() -> None:
    """Only the usage chunk is changed, whatever the text says."""
    known = PromptUsage(num_tokens=9, num_cached_tokens=4)
    stream = EventStream(shown=None, skip=None, usage=lambda: known)
    text = encoded(piece("usage", chat=False))
    assert stream.feed(text) == text
    counts = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    got = stream.feed(encoded({"choices": [], "usage": {**counts, "prompt_tokens_details": {"cached_tokens": 9}}}))
    assert json.loads(got[6:]) == {"choices": [], "usage": {**counts, "prompt_tokens_details": {"cached_tokens": 4}}}
    unknown = EventStream(shown=None, skip=None, usage=lambda: None)
    event = encoded({"choices": [], "usage": counts})
    assert unknown.feed(event) == event
