"""Bodies of POST /v1/completions."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from baton.wire.openai.common import GenerationFields, Int, PromptLogprobs, Usage
from baton.wire.openai.handoff import TicketParams

PromptList = list[Int | str | list[Int]]


class CompletionRequest(GenerationFields, frozen=True, kw_only=True):
    """Prompts as text, texts, token ids or lists of token ids."""

    prompt: str | PromptList | None = None
    prompt_embeds: Any = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Int | None = None
    best_of: Int | None = None

    @property
    def score_only(self) -> bool:
        """Whether the prompt is to be shown, with its logprobs, and nothing generated."""
        return self.max_tokens == 0 and bool(self.echo)


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's first format: four lists of one entry a token.

    Attributes:
        token_logprobs, top_logprobs: null for the first token of an echoed prompt.
        text_offset: where in the choice's text the token begins, in characters.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer, or one chunk of a stream (usage then only where asked for)."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    kv_transfer_params: TicketParams | UnsetType = UNSET
