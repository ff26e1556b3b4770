"""Turns the tokens of one output into text as they come."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol

from baton.text.pieces import TokenPieces
from baton.text.tokenizer import Tokenizer
from baton.text.window import WindowDecoder


class _Decoder(Protocol):
    """One way to stream; see TextStream for the law."""

    def add(self, token_id: int) -> str:
        """Take a token; returns the text that is final now and was not before."""

    def end(self) -> str:
        """The rest of the text, after the last token."""


class TextStream:
    """Incremental decoder of one token sequence, amortised constant work per token.

    Law: the pieces that `push` and `finish` return join to exactly `tokenizer.decode(all ids)`. Text once returned
    never changes, so what the next tokens could still change is held back: an unfinished UTF-8 sequence, and with
    SentencePiece byte tokens the whole run of them (one bad byte spoils the run). Decoders that may rewrite text
    without bound are the only exception; `window.WindowDecoder` says which and what happens.

    Args:
        tokenizer: of the model.
        skip_special_tokens: leave special tokens out of the text.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset[int]()
        self._decoder = _decoder(tokenizer)

    def push(self, token_ids: Iterable[int]) -> str:
        """Take further tokens; returns the text that is final now and was not before."""
        return "".join([self._decoder.add(i) for i in token_ids if i not in self._skipped])

    def finish(self) -> str:
        """The rest of the text, after the last token."""
        return self._decoder.end()


def _decoder(tokenizer: Tokenizer) -> _Decoder:
    """The fastest way that is exact."""
    if tokenizer.pieces is None:
        return WindowDecoder(tokenizer.backend)
    return _ByteLevel(tokenizer.pieces) if tokenizer.pieces.rules.byte_level else _SentencePiece(tokenizer.pieces)


class _ByteLevel:
    """All tokens are bytes of one UTF-8 text; what is not valid becomes U+FFFD."""

    def __init__(self, pieces: TokenPieces) -> None:
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_id: int) -> str:
        piece = self._pieces.piece(token_id)
        assert not isinstance(piece, str)
        return "" if piece is None else self._utf8.decode(piece)

    def end(self) -> str:
        return self._utf8.decode(b"", final=True)


class _SentencePiece:
    """Tokens are text or single bytes; a run of bytes that is not valid UTF-8 becomes one U+FFFD a byte."""

    def __init__(self, pieces: TokenPieces) -> None:
        self._pieces = pieces
        self._run = bytearray()
        self._strip = pieces.rules.strip
        self._to_strip = pieces.rules.strip_count

    def add(self, token_id: int) -> str:
        piece = self._pieces.piece(token_id)
        if piece is None:
            return ""
        if isinstance(piece, bytes):
            self._run += piece
            return ""
        return self._stripped(self._end_run() + piece)

    def end(self) -> str:
        return self._stripped(self._end_run())

    def _end_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _stripped(self, text: str) -> str:
        """Take what is left to strip off the front of the whole text."""
        while self._to_strip and text:
            if text[0] != self._strip:
                self._to_strip = 0
                break
            text, self._to_strip = text[1:], self._to_strip - 1
        return text
