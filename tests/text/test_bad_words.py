"""Forbidden words become the token sequences that can spell them."""

from __future__ import annotations

import pytest

from baton.core.errors import RequestError
from baton.text.bad_words import bad_words_token_ids
from baton.text.tokenizer import Tokenizer


def test_with_and_without_space(byte_level: Tokenizer) -> None:
    """ "fox" at the start of a text and inside one are different tokens; both are found."""
    found = bad_words_token_ids(byte_level, ["fox"])
    assert {byte_level.decode(ids) for ids in found} == {"fox", " fox"}


def test_same_word_once(byte_level: Tokenizer) -> None:
    assert bad_words_token_ids(byte_level, ["fox", " fox", "fox"]) == bad_words_token_ids(byte_level, ["fox"])


def test_no_bos(sentencepiece: Tokenizer) -> None:
    found = bad_words_token_ids(sentencepiece, ["hello"])
    assert found[0] == (sentencepiece.backend.token_to_id("\u2581hello"),)


def test_blank_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match="blank") as caught:
        bad_words_token_ids(byte_level, ["  "])
    assert caught.value.param == "bad_words"
