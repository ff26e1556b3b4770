"""Streams the text of any decoder: decodes a short window of the newest tokens and shows what is new at its end.

For decoders whose tokens have no text of their own: joined by spaces, with word marks, cleaned up, rewritten.
"""

from __future__ import annotations

from typing import Any

import tokenizers

from baton.text.pieces import BYTE_TOKEN, decoder_steps

_REPLACEMENT = "\ufffd"
_KEEP = 8
"""Tokens of context: enough that what a decoder does at the front of a text is far from the end."""
_GROWTH = 16
"""The window is cut when it has grown by so many tokens."""
_PATIENCE = 48
"""Cuts that are given up because they would change the end of the text, before one is made all the same."""
_LOOKAHEAD = 16
"""Characters held back when a step rewrites the whole text by rules of unknown length."""
_CHARACTERWISE = frozenset(("Strip", "Metaspace", "Fuse", "ByteFallback", "ByteLevel"))


def lookahead(steps: list[dict[str, Any]]) -> int:
    """How many characters at the end of a text further tokens may rewrite.

    Steps that see one token at a time rewrite none. Those behind a step that fuses all tokens see the whole text: a
    replacement of n characters may begin n - 1 characters before the end.
    """
    fused, total = False, 0
    for step in steps:
        if fused and step["type"] == "Replace" and "String" in step["pattern"]:
            total += max(0, len(step["pattern"]["String"]) - 1)
        elif fused and step["type"] not in _CHARACTERWISE:
            total += _LOOKAHEAD
        fused = fused or step["type"] in ("Fuse", "ByteLevel")
    return total


class WindowDecoder:
    """Incremental decoder of one token sequence over the tokenizer's own `decode`; amortised constant work per token.

    Held back: a U+FFFD at the end (its character may be unfinished; with the next token it is shown, one way or the
    other), a run of <0x..> tokens where they are bytes, and the characters that `lookahead` names.

    Exact (pieces join to decode(all ids)) wherever more tokens change nothing but what is held back: no decoder,
    WordPiece, Metaspace, BPEDecoder with its suffix at the ends of tokens, CTC, and sequences of steps that see single
    tokens or replace fixed texts. `end` compares with the whole text and adds exactly what is missing. If more
    tokens did rewrite text already shown (a regular expression over the whole text with a match longer than the
    lookahead, a BPEDecoder suffix inside a token), shown text stays as it was shown: the pieces then join to the text
    as it looked while it came, each token's text once, and differ from decode(all ids) at the rewritten places.

    Behind a prompt, the text begins where decode(prompt + ids) first differs from decode(prompt) or goes beyond it.

    Args:
        backend: the tokenizer.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        steps = decoder_steps(backend) or []
        self._backend = backend
        self._lookahead = lookahead(steps)
        self._byte_fallback = any(step["type"] == "ByteFallback" for step in steps)
        self._ids: list[int] = []
        self._num_prompt = 0  # of the ids
        self._prompt = ""  # its text at the front of the window, until there is text behind it
        self._pieces: list[str] = []
        self._window: list[int] = []
        self._bearing: list[bool] = []  # of the window's tokens: it changed the text, or was stripped at the front
        self._text = ""  # of the window
        self._shown = 0  # characters of it that were returned
        self._cut_at = _KEEP + _GROWTH
        self._given_up = 0

    def prime(self, head: list[int], tail: list[int] | None) -> None:
        """Take the prompt, before all else: its first and its last tokens; tail None: the head is all of it."""
        ids = head
        if tail is not None:
            ids = tail if self._decode(tail).strip() else head + tail
        self._ids, self._window, self._num_prompt = list(ids), list(ids), len(ids)
        self._bearing = [True] * len(ids)
        self._text = self._prompt = self._decode(ids)
        self._shown = len(self._text)
        self._cut_at = len(ids) + _GROWTH

    def add(self, token_id: int) -> str:
        """Take a token; returns the text that is final now and was not before. Ids without a token give none."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return ""
        self._ids.append(token_id)
        self._window.append(token_id)
        if self._byte_fallback and BYTE_TOKEN.fullmatch(token):
            self._bearing.append(True)
            return ""
        text = self._decode(self._window)
        self._bearing.append(text != self._text or (token != "" and not text))
        self._text = text
        self._shown = _shared(text, self._prompt) if self._prompt else min(self._shown, len(text))
        final = max(self._shown, len(text) - self._lookahead - text.endswith(_REPLACEMENT))
        piece = text[self._shown : final]
        self._shown = final
        if piece:
            self._prompt = ""
        self._pieces.append(piece)
        if len(self._window) > self._cut_at:
            self._cut()
        return piece

    def end(self) -> str:
        """The rest of the text, after the last token."""
        whole, shown = self._decode(self._ids), "".join(self._pieces)
        if self._num_prompt:
            whole = whole[_shared(whole, self._decode(self._ids[: self._num_prompt])) :]
        if whole.startswith(shown):
            return whole[len(shown) :]
        return self._decode(self._window)[self._shown :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        return text

    def _cut(self) -> None:
        """Shorten the window to its newest tokens, or to these and some older ones that gave text.

        Enough is what ends in the same text, one shown character included: then whatever the decoder does at the
        front of a text (strip, no space) is done before that character. The newest tokens alone are not enough where
        most tokens give no text.
        """
        size = len(self._window)
        newest, older = range(size - _KEEP, size), [i for i in range(size - _KEEP) if self._bearing[i]]
        sparse = [*older[-(_KEEP + self._lookahead) :], *newest]
        ending, rest = self._text[max(0, self._shown - 1) :], len(self._text) - self._shown
        for places in (newest, sparse) if self._shown else (sparse,):
            window = [self._window[i] for i in places]
            text = self._decode(window)
            if text.endswith(ending):
                break
        else:
            self._given_up += 1
            if self._given_up <= _PATIENCE:
                return
        self._window, self._bearing = window, [self._bearing[i] for i in places]
        self._text, self._shown = text, max(0, len(text) - rest)
        self._prompt = self._prompt and text[: self._shown]
        self._cut_at, self._given_up = len(window) + _GROWTH, 0


def _shared(text: str, other: str) -> int:
    """Number of characters at the front that are the same."""
    return next(
        (i for i, pair in enumerate(zip(text, other, strict=False)) if pair[0] != pair[1]), min(len(text), len(other))
    )
