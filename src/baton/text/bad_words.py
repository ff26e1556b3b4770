"""Turns forbidden words into forbidden token sequences."""

from __future__ import annotations

from collections.abc import Iterable

from baton.core.errors import RequestError
from baton.text.tokenizer import Tokenizer


def bad_words_token_ids(tokenizer: Tokenizer, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """Token sequences that spell each word, at the start of a text and after a space; no sequence twice.

    Args:
        words: as the caller wrote them; spaces in front are ignored.

    Raises:
        RequestError: a word without any text.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip()
        if not bare:
            raise RequestError("bad_words must not contain blank texts", param="bad_words")
        for spelled in (bare, " " + bare):
            ids = tuple(tokenizer.encode(spelled, add_special_tokens=False))
            if ids:
                sequences[ids] = None
    return tuple(sequences)
