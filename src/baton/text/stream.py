"""Turns the tokens of one output into text as they come."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from baton.text.pieces import DecoderRules
from baton.text.tokenizer import Tokenizer


class TextStream:
    """Incremental decoder of one token sequence, constant work per token.

    Law: the pieces that `push` and `finish` return join to exactly `tokenizer.decode(all ids)`. Text once returned
    never changes, so what the next tokens could still change is held back: an unfinished UTF-8 sequence, and with
    SentencePiece byte tokens the whole run of them (one bad byte spoils the run).

    Args:
        tokenizer: of the model.
        skip_special_tokens: leave special tokens out of the text.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._pieces = tokenizer.pieces
        self._skipped = self._pieces.special_token_ids if skip_special_tokens else frozenset[int]()
        rules = self._pieces.rules
        self._decoder: _ByteLevel | _SentencePiece = _ByteLevel() if rules.byte_level else _SentencePiece(rules)

    def push(self, token_ids: Iterable[int]) -> str:
        """Take further tokens; returns the text that is final now and was not before."""
        out = []
        for token_id in token_ids:
            piece = None if token_id in self._skipped else self._pieces.piece(token_id)
            if piece is not None:
                out.append(self._decoder.add(piece))
        return "".join(out)

    def finish(self) -> str:
        """The rest of the text, after the last token."""
        return self._decoder.end()


class _ByteLevel:
    """All tokens are bytes of one UTF-8 text; what is not valid becomes U+FFFD."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, piece: bytes | str) -> str:
        assert isinstance(piece, bytes)
        return self._utf8.decode(piece)

    def end(self) -> str:
        return self._utf8.decode(b"", final=True)


class _SentencePiece:
    """Tokens are text or single bytes; a run of bytes that is not valid UTF-8 becomes one U+FFFD a byte."""

    def __init__(self, rules: DecoderRules) -> None:
        self._run = bytearray()
        self._strip = rules.strip
        self._to_strip = rules.strip_count

    def add(self, piece: bytes | str) -> str:
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
