"""Text to token ids and back, and chat messages to text: one small class over a `tokenizers.Tokenizer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from baton.core.errors import ModelError, RequestError
from baton.text.chat_template import Message, render
from baton.text.pieces import TokenPieces, decoder_rules


class Tokenizer:
    """The tokenizer of one model. Immutable after construction; safe to share between threads.

    Attributes:
        backend: the underlying tokenizer (grammar compilers need it).
        vocab_size: largest token id + 1, added tokens included. A model's logits may be wider (padding rows).
        eos_token_ids: every token that ends the model's output, ends of a chat turn included.
        bos_token_id: None when the model has no such token.
        special_token_ids: left out of text by skip_special_tokens.
        pieces: text of single tokens, for streaming; None when the decoder gives tokens no text of their own.
        chat_templates: Jinja sources by name; "default" is the usual one, "tool_use" serves calls with tools.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
        special_tokens: Mapping[str, Any] | None = None,
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            special_tokens: what templates see: "bos_token", "eos_token", "pad_token" ... and their text.

        Raises:
            ModelError: a decoder that the tokenizers library cannot run safely; see `pieces.decoder_rules`.
        """
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder()
        self.backend = backend
        self.special_tokens = dict(special_tokens or {})
        self.chat_templates = dict(chat_templates or {})
        self.eos_token_ids = eos_token_ids
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)
        rules = decoder_rules(backend)
        self.pieces = None if rules is None else TokenPieces(backend, rules)
        bos = self.special_tokens.get("bos_token")
        self.bos_token_id: int | None = None if bos is None else backend.token_to_id(bos)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Special tokens spelled out in the text become those tokens. Other threads run meanwhile.

        Args:
            add_special_tokens: put BOS in front (or EOS behind) where the model wants that. False for text that
                has them already, such as a rendered chat.

        Raises:
            RequestError: the text has lone surrogates and is no valid Unicode.
        """
        try:
            # Not backend.encode: that one holds the GIL, and works out offsets that nobody reads.
            (encoding,) = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError("the prompt must be valid Unicode text", param="prompt") from error
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`, exactly as generated: no clean-up of spaces. Ids without a token give no text."""
        # Not backend.decode: that one holds the GIL.
        texts: list[str] = self.backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)
        return texts[0]

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        **template_kwargs: Any,
    ) -> str:
        """Prompt text of a conversation; encode it with add_special_tokens=False.

        Args:
            messages: see `chat_template.render`.
            chat_template: Jinja source in place of the model's own.
            template_kwargs: further variables of the template, such as enable_thinking.

        Raises:
            RequestError: no template, a malformed message, or the template refuses.
        """
        template = chat_template or self._chat_template(bool(tools))
        variables = {**self.special_tokens, **template_kwargs}
        return render(template, messages, tools=tools, add_generation_prompt=add_generation_prompt, variables=variables)

    def _chat_template(self, with_tools: bool) -> str:
        if with_tools and "tool_use" in self.chat_templates:
            return self.chat_templates["tool_use"]
        if "default" not in self.chat_templates:
            raise RequestError(
                "the model has no chat template; give one, or send a plain prompt", param="chat_template"
            )
        return self.chat_templates["default"]


def load_tokenizer(path: Path) -> Tokenizer:
    """Tokenizer of a Hugging Face folder or of a .gguf file.

    Raises:
        ModelError: nothing there, or something this package cannot do right; names it.
    """
    # Imported here because both need the class above.
    from baton.text.gguf_tokenizer import tokenizer_from_gguf
    from baton.text.hf_tokenizer import tokenizer_from_folder

    if path.is_dir():
        return tokenizer_from_folder(path)
    if not path.is_file():
        raise ModelError(f"{path} does not exist; give a Hugging Face folder or a .gguf file")
    return tokenizer_from_gguf(path)
