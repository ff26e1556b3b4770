"""Bodies of /tokenize, /detokenize, /tokenizer_info and /v1/models (vLLM's forms)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from baton.wire.openai.common import Int


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A text, or a conversation to be rendered by the chat template first."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """token_strs: the text of each token, where asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids to turn into text."""

    model: str | None = None
    tokens: list[Int]


class Detokenized(msgspec.Struct, frozen=True, kw_only=True):
    """The text, special tokens included."""

    prompt: str


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One served name. root: the model as given on the command line."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "baton"
    root: str
    parent: None = None
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Every name the model is served under."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
