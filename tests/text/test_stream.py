"""The law: what a stream returns joins to exactly decode(all ids), and nothing is returned too early."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.text.stream import TextStream
from baton.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
FAMILIES = ["byte_level", "sentencepiece"]


@pytest.fixture(scope="session", params=FAMILIES)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


def stream(tokenizer: Tokenizer, ids: list[int], cuts: list[int], skip: bool = True) -> str:
    """Push `ids` in pieces that end at `cuts`."""
    text_stream = TextStream(tokenizer, skip_special_tokens=skip)
    ends = sorted({*(cut for cut in cuts if cut <= len(ids)), len(ids)})
    pieces = [text_stream.push(ids[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    return "".join(pieces) + text_stream.finish()


@given(data=st.data(), skip=st.booleans())
def test_random_ids_join_to_decode(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    """Any ids: special tokens, invalid UTF-8, byte tokens, ids beyond the vocabulary."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=40))
    cuts = data.draw(st.lists(st.integers(0, 40), max_size=10))
    assert stream(tokenizer, ids, cuts, skip) == tokenizer.decode(ids, skip_special_tokens=skip)


@given(data=st.data())
def test_random_byte_tokens_join_to_decode(sentencepiece: Tokenizer, data: st.DataObject) -> None:
    """Dense in bytes of multi-byte characters, so that runs are often valid and often just not."""
    lead = st.sampled_from([0xC3, 0xE4, 0xF0, 0x9F, 0x98, 0x80, 0xB8, 0x96, 0xA9, 0x41])
    token = st.one_of(lead.map(lambda byte: 3 + byte), st.integers(0, sentencepiece.vocab_size - 1))
    ids = data.draw(st.lists(token, max_size=30))
    assert stream(sentencepiece, ids, list(range(30))) == sentencepiece.decode(ids)


@given(text=st.text(max_size=30))
def test_text_survives_token_by_token(tokenizer: Tokenizer, text: str) -> None:
    """Encoded text comes back, and what has been shown at any time is a beginning of it."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    whole = tokenizer.decode(ids)
    text_stream, shown = TextStream(tokenizer), ""
    for token_id in ids:
        shown += text_stream.push([token_id])
        assert whole.startswith(shown)
    assert shown + text_stream.finish() == whole


@pytest.mark.parametrize("family", FAMILIES)
def test_emoji_over_several_tokens_comes_whole(family: str, request: pytest.FixtureRequest) -> None:
    """No replacement character is shown for the first bytes of a character."""
    tokenizer = request.getfixturevalue(family)
    ids = [i for byte in "🦜!".encode() for i in byte_ids(tokenizer, byte)]
    text_stream = TextStream(tokenizer)
    pieces = [text_stream.push([i]) for i in ids] + [text_stream.finish()]
    assert "".join(pieces) == "🦜!"
    assert REPLACEMENT not in "".join(pieces)
    assert pieces[:3] == ["", "", ""]


def byte_ids(tokenizer: Tokenizer, byte: int) -> list[int]:
    """The token of one raw byte."""
    found = tokenizer.backend.token_to_id(f"<0x{byte:02X}>")
    if found is None:
        found = next(i for i in range(tokenizer.vocab_size) if tokenizer.pieces.piece(i) == bytes([byte]))
    return [found]


def test_unfinished_character_at_the_end_is_replaced(byte_level: Tokenizer) -> None:
    """Two bytes of four, then the end: one U+FFFD, as decode gives."""
    ids = [i for byte in "🦜".encode()[:2] for i in byte_ids(byte_level, byte)]
    text_stream = TextStream(byte_level)
    assert (text_stream.push(ids), text_stream.finish()) == ("", REPLACEMENT)


def test_byte_tokens_of_every_byte(byte_level: Tokenizer) -> None:
    """GPT-2's table is a bijection: each of the 256 bytes has exactly one token in the trained alphabet."""
    pieces = [byte_level.pieces.piece(i) for i in range(byte_level.vocab_size)]
    assert {piece for piece in pieces if isinstance(piece, bytes) and len(piece) == 1} == {
        bytes([byte]) for byte in range(256)
    }


def test_sentencepiece_strips_one_leading_space(sentencepiece: Tokenizer) -> None:
    """The space in front of the first word goes, the one in front of the second stays, also after a special token."""
    the, quick = (sentencepiece.backend.token_to_id(token) for token in ("\u2581the", "\u2581quick"))
    text_stream = TextStream(sentencepiece)
    assert [text_stream.push([i]) for i in (1, the, quick)] == ["", "the", " quick"]


def test_special_tokens_are_shown_on_request(byte_level: Tokenizer) -> None:
    assert stream(byte_level, [1, 2], [1], skip=False) == "<|im_start|><|im_end|>"
    assert stream(byte_level, [1, 2], [1]) == ""
