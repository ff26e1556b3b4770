"""What each token id adds to the text: its bytes or characters, read from the tokenizer's own decoder settings.

Two families of decoders are known, and between them serve all models here:
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

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


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


def decoder_rules(backend: tokenizers.Tokenizer) -> DecoderRules:
    """Read the rules of a tokenizer's decoder.

    Raises:
        ModelError: a decoder of another family; names it.
    """
    if backend.decoder is None:
        raise ModelError("the tokenizer has no decoder; supported: ByteLevel, or a SentencePiece sequence")
    state = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return DecoderRules(byte_level=True)
    return _sentencepiece_rules(steps, kinds)


def _sentencepiece_rules(steps: list[dict[str, Any]], kinds: list[str]) -> DecoderRules:
    replacements: list[tuple[str, str]] = []
    strip, count = "", 0
    for i, step in enumerate(steps):
        before = kinds[:i]
        if step["type"] == "Replace" and set(before) <= {"Replace"} and "String" in step["pattern"]:
            replacements.append((step["pattern"]["String"], step["content"]))
        elif step["type"] == "Strip" and "Fuse" in before and step["stop"] == 0 and not count:
            strip, count = step["content"], step["start"]
        elif not (step["type"] in ("ByteFallback", "Fuse") and set(before) <= {"Replace", "ByteFallback"}):
            raise ModelError(f"tokenizer decoder {'+'.join(kinds)} is not supported (at {step['type']})")
    if "Fuse" not in kinds:
        raise ModelError(f"tokenizer decoder {'+'.join(kinds)} is not supported (no Fuse)")
    return DecoderRules(
        replacements=tuple(replacements), byte_fallback="ByteFallback" in kinds, strip=strip, strip_count=count
    )


class TokenPieces:
    """Bytes or text of single tokens, looked up once each.

    Args:
        backend: the tokenizer.
        special_token_ids: ids that give nothing when special tokens are skipped.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special_token_ids: frozenset[int]) -> None:
        self.rules = decoder_rules(backend)
        self.special_token_ids = special_token_ids
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
        match = _BYTE_TOKEN.fullmatch(token) if self.rules.byte_fallback else None
        return bytes([int(match[1], 16)]) if match else token


def _byte_table() -> dict[str, int]:
    """GPT-2's character for each byte: printable Latin-1 characters are themselves, the rest follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_table()
