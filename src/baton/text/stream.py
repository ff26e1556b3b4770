"""Turns the tokens of one output into text as they come."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from baton.text.pieces import TokenPieces
from baton.text.tokenizer import Tokenizer
from baton.text.window import WindowDecoder

_REPLACEMENT = "\ufffd"
_CONTEXT = 64
"""Tokens at either end of a prompt that are looked at. The first ones tell whether a text has begun."""
_CONTINUATION = bytes(range(0x80, 0xC0))
"""Bytes of UTF-8 that begin no character."""


class _Decoder(Protocol):
    """One way to stream; see TextStream for the law."""

    def prime(self, head: list[int], tail: list[int] | None) -> None:
        """Take the prompt, before all else: its first and its last tokens; tail None: the head is all of it."""

    def add(self, token_id: int) -> str:
        """Take a token; returns the text that is final now and was not before."""

    def end(self) -> str:
        """The rest of the text, after the last token."""


class TextStream:
    """Incremental decoder of one token sequence, amortised constant work per token.

    Law: the pieces that `push` and `finish` return join to exactly `tokenizer.decode(all ids)`, and behind a prompt to
    `decode(prompt + all ids)[len(decode(prompt)):]`: the first word keeps the space in front of it where the prompt
    shows any text. Text once returned never changes, so what the next tokens could still change is held back: an
    unfinished UTF-8 sequence, and with SentencePiece byte tokens the whole run of them (one bad byte spoils the run).
    Decoders that may rewrite text without bound are the only exception; `window.WindowDecoder` says which and what
    happens.

    Where the tokens change the prompt's own text (decode(prompt) is no beginning of the whole), the text begins with
    what they changed: a character that the prompt leaves unfinished and the tokens complete is theirs. Of long prompts
    only the ends are read; a run of byte tokens longer than that counts as valid before its end.

    Args:
        tokenizer: of the model.
        skip_special_tokens: leave special tokens out of the text.
        prompt_token_ids: what the tokens continue.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special_tokens: bool = True, prompt_token_ids: Sequence[int] = ()
    ) -> None:
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset[int]()
        self._decoder = _decoder(tokenizer)
        if prompt_token_ids:
            whole = len(prompt_token_ids) <= 2 * _CONTEXT
            head = self._shown(prompt_token_ids if whole else prompt_token_ids[:_CONTEXT])
            self._decoder.prime(head, None if whole else self._shown(prompt_token_ids[-_CONTEXT:]))

    def push(self, token_ids: Iterable[int]) -> str:
        """Take further tokens; returns the text that is final now and was not before."""
        return "".join([self._decoder.add(i) for i in self._shown(token_ids)])

    def finish(self) -> str:
        """The rest of the text, after the last token."""
        return self._decoder.end()

    def _shown(self, token_ids: Iterable[int]) -> list[int]:
        return [i for i in token_ids if i not in self._skipped]


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
        self._unfinished = ""  # how decode(prompt) shows the character it ends inside, until it is known what follows

    def prime(self, head: list[int], tail: list[int] | None) -> None:
        for token_id in head if tail is None else tail:
            self.add(token_id)
        self._unfinished = self._utf8.getstate()[0].decode(errors="replace")

    def add(self, token_id: int) -> str:
        piece = self._pieces.piece(token_id)
        assert not isinstance(piece, str)
        return "" if piece is None else self._own(self._utf8.decode(piece))

    def end(self) -> str:
        return self._own(self._utf8.decode(b"", final=True))

    def _own(self, text: str) -> str:
        """Without what the prompt showed already, where the character does not become a valid one."""
        if not self._unfinished or not text:
            return text
        shown, self._unfinished = self._unfinished, ""
        return text.removeprefix(shown)


class _SentencePiece:
    """Tokens are text or single bytes; a run of bytes that is not valid UTF-8 becomes one U+FFFD a byte."""

    def __init__(self, pieces: TokenPieces) -> None:
        self._pieces = pieces
        self._run = bytearray()
        self._num_prompt = 0  # bytes at the beginning of the run that are the prompt's
        self._strip = pieces.rules.strip
        self._to_strip = pieces.rules.strip_count

    def prime(self, head: list[int], tail: list[int] | None) -> None:
        for token_id in head:
            self.add(token_id)
        if tail is not None:
            self._end_run()
            for token_id in tail:
                self.add(token_id)
            if len(self._run) == len(tail):  # the run began earlier: from its first whole character on
                self._run = self._run.lstrip(_CONTINUATION)
        self._num_prompt = len(self._run)

    def add(self, token_id: int) -> str:
        piece = self._pieces.piece(token_id)
        if piece is None:
            return ""
        if isinstance(piece, bytes):
            self._run += piece
            return ""
        return self._end_run() + self._stripped(piece)

    def end(self) -> str:
        return self._end_run()

    def _end_run(self) -> str:
        """Text of the run of bytes, stripped, without what the prompt's part of it showed."""
        run, num_prompt = bytes(self._run), self._num_prompt
        self._run.clear()
        self._num_prompt = 0
        if not num_prompt:
            return self._stripped(_run_text(run))
        to_strip = self._to_strip
        before = self._stripped(_run_text(run[:num_prompt]))
        self._to_strip = to_strip
        whole = _run_text(run)
        after = self._stripped(whole)
        if after.startswith(before):
            return after[len(before) :]
        valid = whole != _REPLACEMENT * len(run)
        return whole[len(run[:num_prompt].decode(errors="ignore")) if valid else num_prompt :]

    def _stripped(self, text: str) -> str:
        """Take what is left to strip off the front of the whole text."""
        while self._to_strip and text:
            if text[0] != self._strip:
                self._to_strip = 0
                break
            text, self._to_strip = text[1:], self._to_strip - 1
        return text


def _run_text(run: bytes) -> str:
    try:
        return run.decode()
    except UnicodeDecodeError:
        return _REPLACEMENT * len(run)
