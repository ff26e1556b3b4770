"""What each token id adds to the text: its bytes or characters, read from the tokenizer's own decoder settings.

In two families of decoders every token has a text of its own, and nearly all models use one of them:
- byte-level (GPT-2, Llama 3, Qwen, SmolLM): a token is a run of bytes, the text is all bytes read as UTF-8;
- SentencePiece (Llama 2, Mistral): a token is text in which a mark stands for a space; <0x..> tokens are bytes, and
  a run of them is text only if the whole run is valid UTF-8.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import tokenizers

from baton.core.errors import ModelError

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""A token that stands for one byte where the decoder has byte fallback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderRules:
    """How tokens become text.

    Attributes:
        byte_level: token characters stand for bytes (GPT-2's table). Else the other fields apply.
        replacements: (pattern, content) applied to every token.
        byte_fallback: <0x..> tokens are bytes.
        strip: this character is taken off the front of the whole text, at most strip_count times.
    """

    byte_level: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    strip: str = ""
    strip_count: int = 0


def decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]] | None:
    """Settings of the decoder's steps, nested sequences laid out flat; None without a decoder."""
    return None if backend.decoder is None else _flat(json.loads(backend.decoder.__getstate__()))


def _flat(state: dict[str, Any]) -> list[dict[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    return [step for inner in state["decoders"] for step in _flat(inner)]


def decoder_rules(backend: tokenizers.Tokenizer) -> DecoderRules | None:
    """The rules of a tokenizer's decoder; None for a decoder of another family.

    Raises:
        ModelError: a Strip step at the end of tokens, on which the tokenizers library panics when a token is empty.
    """
    steps = decoder_steps(backend)
    if steps is None:
        return None
    if any(step["type"] == "Strip" and step["stop"] for step in steps):
        raise ModelError("tokenizer decoder Strip cannot strip the end of tokens; set its stop to 0 in tokenizer.json")
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return DecoderRules(byte_level=True)
    return _sentencepiece_rules(steps)


def _sentencepiece_rules(steps: list[dict[str, Any]]) -> DecoderRules | None:
    """Rules of Replace*, ByteFallback, Fuse, Strip in this order, each but Replace at most once; else None."""
    order = {"Replace": 0, "ByteFallback": 1, "Fuse": 2, "Strip": 3}
    ranks = [order.get(step["type"], -1) for step in steps]
    if -1 in ranks or ranks != sorted(ranks) or any(ranks.count(rank) > 1 for rank in (1, 2, 3)):
        return None
    replaces = [step for step in steps if step["type"] == "Replace"]
    strip = next((step for step in steps if step["type"] == "Strip"), None)
    if any(not step["pattern"].get("String") for step in replaces):
        return None
    if strip is not None and order["Fuse"] not in ranks:
        return None
    return DecoderRules(
        replacements=tuple((step["pattern"]["String"], step["content"]) for step in replaces),
        byte_fallback=1 in ranks,
        strip="" if strip is None else strip["content"],
        strip_count=0 if strip is None else strip["start"],
    )


class TokenPieces:
    """Bytes or text of single tokens, looked up once each.

    Args:
        backend: the tokenizer.
        rules: of its decoder.
    """

    def __init__(self, backend: tokenizers.Tokenizer, rules: DecoderRules) -> None:
        self.rules = rules
        self._backend = backend
        self._known: dict[int, bytes | str | None] = {}

    def piece(self, token_id: int) -> bytes | str | None:
        """Bytes (byte-level tokens, byte-fallback tokens) or text of a token; None for an id without a token."""
        if token_id not in self._known:
            token = self._backend.id_to_token(token_id)
            self._known[token_id] = None if token is None else self._convert(token)
        return self._known[token_id]

    def _convert(self, token: str) -> bytes | str:
        if self.rules.byte_level:
            try:
                return bytes(_BYTE_OF[char] for char in token)
            except KeyError:  # an added token with characters outside the table stands for itself
                return token.encode()
        for pattern, content in self.rules.replacements:
            token = token.replace(pattern, content)
        match = BYTE_TOKEN.fullmatch(token) if self.rules.byte_fallback else None
        return bytes([int(match[1], 16)]) if match else token


def _byte_table() -> dict[str, int]:
    """GPT-2's character for each byte: printable Latin-1 characters are themselves, the rest follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_table()
