"""Text of single tokens, as logprobs and /tokenize show it."""

from __future__ import annotations

from collections.abc import Sequence

from baton.text.stream import TextStream
from baton.text.tokenizer import Tokenizer


class TokenTexts:
    """Looks each token up once.

    A token that is only a part of a character has no text; it is shown as its bytes in the form of OpenAI's API,
    bytes:\\xf0\\x9f, so that different tokens stay different (clients use these texts as keys).

    Args:
        tokenizer: None shows ids.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[str, bytes]] = {}

    def text(self, token_id: int) -> str:
        """Text of a token."""
        return self._look_up(token_id)[0]

    def raw(self, token_id: int) -> bytes:
        """Bytes of a token; empty for one without text."""
        return self._look_up(token_id)[1]

    def _look_up(self, token_id: int) -> tuple[str, bytes]:
        if token_id not in self._known:
            self._known[token_id] = self._describe(token_id)
        return self._known[token_id]

    def _describe(self, token_id: int) -> tuple[str, bytes]:
        if self._tokenizer is None:
            return f"token_id:{token_id}", b""
        if self._tokenizer.pieces is None:
            text = self._tokenizer.decode([token_id], skip_special_tokens=False)
            return text, text.encode(errors="replace")
        piece = self._tokenizer.pieces.piece(token_id)
        if piece is None:
            return f"token_id:{token_id}", b""
        if isinstance(piece, str):
            return piece, piece.encode(errors="replace")
        try:
            return piece.decode(), piece
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece), piece


class OffsetCounter:
    """Where each token of a text begins: characters that were complete before it.

    Args:
        tokenizer: of the model; None counts nothing.
        skip_special_tokens: special tokens have no place in the text.
        start: characters in front of the first token.
        prompt_token_ids: what the text continues.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        skip_special_tokens: bool = True,
        start: int = 0,
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        self._stream = None if tokenizer is None else TextStream(tokenizer, skip_special_tokens, prompt_token_ids)
        self._position = start

    def push(self, token_id: int) -> int:
        """Offset of the next token."""
        offset = self._position
        if self._stream is not None:
            self._position += len(self._stream.push([token_id]))
        return offset
